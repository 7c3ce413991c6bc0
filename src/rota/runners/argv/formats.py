"""Demuxers, muxers and bitstream filters that may be named, and the ones that names of files stand for; data only.

A demuxer is here if it reads the one file that it is given. Playlists and scripts (hls, dash, concat, sdp, imf, vobsub,
avisynth …) and devices are not: `concat`, `lavfi`, `image2` and their like have code of their own that judges what
they name. A muxer is here if it writes the one file that it is given; `segment`, `hls`, `dash`, `tee` and `image2`
write more, and their options are judged one by one.
"""

from collections.abc import Mapping

from rota.runners.argv.words import words

_CONTAINERS = """
aa aac aax ac3 ac4 adx aiff amr amrnb amrwb ape apng aptx aptx_hd apv aqtitle asf ass ast au av1 avi bonk caf cavsvideo
cdg cine codec2 daud dhav dirac dnxhd dsf dts dtshd dv dvbsub eac3 evc ffmetadata fits flac flic flv g722 g723_1 g728
g729 gif gxf h261 h263 h264 hevc iamf ico iff ilbc ircam ivf jacosub jpegxl_anim lc3 loas lrc m4v matroska mcc microdvd
mjpeg mlp mmf mov mp3 mpc mpc8 mpeg mpegts mpegvideo mpl2 mpsub mxf nsv nut obu ogg oma osq pjs pva qcp qoa rm roq sami
sbc scc ser shn sox spdif srt stl subviewer subviewer1 sup swf tak tedcaptions truehd tta vc1 vc1test voc vplayer vqf
vvc w64 wav webp_anim webvtt wtv wv xwma yuv4mpegpipe
"""

_RAW = """
alaw mulaw f32be f32le f64be f64le s8 s16be s16le s24be s24le s32be s32le u8 u16be u16le u24be u24le u32be u32le g726
g726le gsm rawvideo
"""

_STILLS = """
bmp_pipe dds_pipe dpx_pipe exr_pipe gif_pipe hdr_pipe j2k_pipe jpeg_pipe jpegls_pipe jpegxl_pipe pam_pipe pbm_pipe
pcx_pipe pfm_pipe pgm_pipe pgmyuv_pipe png_pipe ppm_pipe psd_pipe qoi_pipe sgi_pipe sunrast_pipe tiff_pipe webp_pipe
xbm_pipe xpm_pipe xwd_pipe image2pipe
"""

DEMUXERS = words(_CONTAINERS) | words(_RAW) | words(_STILLS)

DEMUXER_NAMES: Mapping[str, str] = {
    "matroska,webm": "matroska", "mkv": "matroska", "webm": "matroska",
    "mov,mp4,m4a,3gp,3g2,mj2": "mov", "mp4": "mov", "m4a": "mov", "3gp": "mov", "3g2": "mov", "mj2": "mov",
}  # fmt: skip
"""Other names that ffmpeg knows a demuxer by."""

PROBED = ",".join(sorted(words(_CONTAINERS) | words(_STILLS) - {"image2pipe"}))
"""What an input may turn out to be that ffmpeg itself has to look at: all but raw formats, which nothing shows."""

SUBTITLES = words(
    """
    ass jacosub lrc microdvd mpl2 pjs sami srt stl subviewer subviewer1 vplayer webvtt scc
    """
)

_EXTENSIONS = """
mov mov m4s mp4 m4a m4b m4v 3gp 3g2 mj2 f4v qt avif heic heif ismv
matroska mkv mka mks webm mk3d weba
mpegts ts m2ts mts m2t tp
mpeg mpg vob mpeg
wav wav
w64 w64
mp3 mp3 mp2 mpa
aac aac adts
flac flac
ogg ogg oga ogv ogx opus spx
aiff aif aiff aifc
caf caf
au au snd
ac3 ac3
eac3 eac3 ec3
dts dts
amr amr
ape ape
wv wv
tta tta
avi avi
flv flv
asf asf wma wmv
mxf mxf
nut nut
ivf ivf
obu obu
h264 h264 264 avc
hevc hevc h265 265
vc1 vc1
mpegvideo m1v m2v
mjpeg mjpg mjpeg
dv dv dif
gif gif
apng apng
yuv4mpegpipe y4m
rm rm rmvb
wtv wtv
jpeg_pipe jpg jpeg
png_pipe png
bmp_pipe bmp
tiff_pipe tif tiff
webp_pipe webp
jpegxl_pipe jxl
j2k_pipe jp2 j2k
dpx_pipe dpx
exr_pipe exr
psd_pipe psd
ppm_pipe ppm
pgm_pipe pgm
pbm_pipe pbm
pam_pipe pam
qoi_pipe qoi
srt srt
webvtt vtt
ass ass ssa
sup sup
lrc lrc
scc scc
ffmetadata ffmeta ffmetadata
"""


def _by_extension(table: str) -> Mapping[str, str]:
    rows = [line.split() for line in table.strip().splitlines()]
    return {extension: row[0] for row in rows for extension in row[1:]}


DEMUXER_OF_EXTENSION = _by_extension(_EXTENSIONS)

MUXERS = words("""
    3g2 3gp ac3 ac4 adts adx aiff alaw amr amv apng aptx aptx_hd apv asf asf_stream ass ast au avi avif avs2 avs3
    caf cavsvideo codec2 crc daud dfpwm dirac dnxhd dts dv dvd eac3 evc f32be f32le f4v f64be f64le ffmetadata fits
    flac flv framecrc framehash framemd5 g722 g723_1 g726 g726le gif gsm gxf h261 h263 h264 hash hevc iamf ico ilbc
    image2pipe ipod ircam ismv ivf jacosub latm lc3 lrc m4v matroska mcc md5 microdvd mjpeg mlp mmf mov mp2 mp3 mp4
    mpeg mpeg1video mpeg2video mpegts mpjpeg mulaw mxf mxf_d10 mxf_opatom null nut obu oga ogg ogv oma opus psp
    rawvideo rm s16be s16le s24be s24le s32be s32le s8 sbc scc sox spdif spx srt streamhash sup svcd swf truehd tta
    ttml u16be u16le u24be u24le u32be u32le u8 vc1 vcd vob voc vvc w64 wav webm webp webvtt wtv wv yuv4mpegpipe
    data
    """)

MUXER_OF_EXTENSION = _by_extension("""
mp4 mp4
mov mov qt
ipod m4a m4b m4v
3gp 3gp
3g2 3g2
f4v f4v
ismv ismv isma
avif avif
matroska mkv mka mks
webm webm
mpegts ts m2t m2ts mts
mpeg mpg mpeg
vob vob
wav wav
w64 w64
mp3 mp3
mp2 mp2 m2a mpa
adts aac
flac flac
ogg ogg
oga oga
ogv ogv
opus opus
spx spx
aiff aif aiff afc aifc
caf caf
au au
ac3 ac3
eac3 eac3 ec3
dts dts
amr amr
wv wv
tta tta
avi avi
flv flv
asf asf wma wmv
mxf mxf
nut nut
ivf ivf
obu obu
h264 h264 264 avc
hevc hevc h265 265
vc1 vc1
mpeg1video m1v
mpeg2video m2v
mjpeg mjpg mjpeg
dv dv
gif gif
apng apng
webp webp
yuv4mpegpipe y4m
rawvideo yuv rgb
srt srt
webvtt vtt
ass ass ssa
sup sup
lrc lrc
scc scc
ttml ttml
ffmetadata ffmeta
adx adx
alaw al
amv amv
aptx aptx
aptx_hd aptxhd
ast ast
cavsvideo cavs
codec2 c2
dirac drc vc2
dnxhd dnxhd dnxhr
fits fits
g722 g722
gsm gsm
gxf gxf
h261 h261
h263 h263
ico ico
ilbc lbc
ircam sf ircam
jacosub jss
latm latm loas
mlp mlp
mmf mmf
mulaw ul
oma oma
psp psp
rm rm ra
s16le sw
s8 sb
sbc sbc msbc
sox sox
spdif spdif
swf swf
truehd thd
u16le uw
u8 ub
voc voc
hls m3u8
dash mpd
image2 bmp dpx exr jls jpeg jpg jxl ljpg pam pbm pcx pfm pgm pgmyuv png ppm sgi tga tif tiff jp2 j2c j2k xwd sun ras
wtv wtv
""")
"""The muxer that ffmpeg itself chooses for a name; `image2` also takes every image whose name holds a number."""

STILL_EXTENSIONS = words(
    """
    bmp dpx exr gif jls jpeg jpg jxl ljpg pam pbm pcx pfm pgm pgmyuv png ppm sgi tga tif tiff jp2 j2c j2k xwd sun ras
    webp qoi avif hdr
    """
)  # fmt: skip

BITSTREAM_FILTERS = words("""
    aac_adtstoasc ahx_to_mp2 apv_metadata av1_frame_merge av1_frame_split av1_metadata chomp dca_core dovi_rpu
    dovi_split dts2pts dump_extra dv_error_marker eac3_core eia608_to_smpte436m evc_frame_merge extract_extradata
    filter_units h264_metadata h264_mp4toannexb h264_redundant_pps hapqa_extract hevc_metadata hevc_mp4toannexb
    imxdump lcevc_metadata media100_to_mjpegb mjpeg2jpeg mjpegadump mp3decomp mpeg2_metadata mpeg4_unpack_bframes
    mov2textsub noise null opus_metadata pcm_rechunk pgs_frame_merge prores_metadata remove_extra setts showinfo
    smpte436m_to_eia608 text2movsub trace_headers truehd_core vp9_metadata vp9_raw_reorder vp9_superframe
    vp9_superframe_split vvc_metadata vvc_mp4toannexb
    """)


def extension(path: str) -> str:
    """The extension of a name, in lower case and without its dot; empty if there is none."""
    name = path.rpartition("/")[2]
    return name.rpartition(".")[2].lower() if "." in name else ""
