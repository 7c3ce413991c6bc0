"""Encoders and decoders that may be named; data only.

Taken from `ffmpeg -encoders` and `-decoders` of 5.1.9 and 8.1.2. Those that open a device or load a driver (nvenc, qsv,
vaapi, v4l2 …) are left out, and librsvg, which may open what an SVG file names.
"""

from collections.abc import Mapping

from rota.runners.argv.words import words

ENCODERS = words("""
a64multi a64multi5 aac ac3 ac3_fixed adpcm_adx adpcm_argo adpcm_ima_alp adpcm_ima_amv adpcm_ima_apm adpcm_ima_qt
adpcm_ima_ssi adpcm_ima_wav adpcm_ima_ws adpcm_ms adpcm_swf adpcm_yamaha alac alias_pix amv anull apng aptx aptx_hd ass
asv1 asv2 avrp avui ayuv bitpacked bmp cfhd cinepak cljr comfortnoise dca dfpwm dnxhd dpx dvbsub dvdsub dvvideo dxv
eac3 exr ffv1 ffvhuff fits flac flashsv flashsv2 flv g722 g723_1 g726 g726le gif h261 h263 h263p hap hdr huffyuv
jpeg2000 jpegls libaom-av1 libcodec2 libfdk_aac libgsm libgsm_ms libjxl libjxl_anim libkvazaar libmp3lame liboapv
libopencore_amrnb libopenh264 libopenjpeg libopus librav1e libshine libspeex libsvtav1 libtheora libtwolame
libvo_amrwbenc libvorbis libvpx libvpx-vp9 libvvenc libwebp libwebp_anim libx264 libx264rgb libx265 libxvid ljpeg
magicyuv mjpeg mlp mov_text mp2 mp2fixed mpeg1video mpeg2video mpeg4 msmpeg4 msmpeg4v2 msrle msvideo1 nellymoser opus
pam pbm pcm_alaw pcm_bluray pcm_dvd pcm_f32be pcm_f32le pcm_f64be pcm_f64le pcm_mulaw pcm_s16be pcm_s16be_planar
pcm_s16le pcm_s16le_planar pcm_s24be pcm_s24daud pcm_s24le pcm_s24le_planar pcm_s32be pcm_s32le pcm_s32le_planar
pcm_s64be pcm_s64le pcm_s8 pcm_s8_planar pcm_u16be pcm_u16le pcm_u24be pcm_u24le pcm_u32be pcm_u32le pcm_u8 pcm_vidc
pcx pfm pgm pgmyuv phm png ppm prores prores_aw prores_ks qoi qtrle r10k r210 rawvideo real_144 roq_dpcm roqvideo rpza
rv10 rv20 s302m sbc sgi smc snow sonic sonicls speedhq srt ssa subrip sunrast svq1 targa text tiff truehd tta ttml
utvideo v210 v308 v408 v410 vbn vc2 vnull vorbis wavpack wbmp webvtt wmav1 wmav2 wmv1 wmv2 wrapped_avframe xbm xface
xsub xwd y41p yuv4 zlib zmbv
""")

ENCODER_OF_CODEC: Mapping[str, str] = {
    "h264": "libx264", "hevc": "libx265", "vp8": "libvpx", "vp9": "libvpx-vp9", "av1": "libaom-av1",
    "theora": "libtheora", "webp": "libwebp", "jpegxl": "libjxl", "mp3": "libmp3lame", "speex": "libspeex",
    "gsm": "libgsm", "gsm_ms": "libgsm_ms", "codec2": "libcodec2", "amr_nb": "libopencore_amrnb",
    "amr_wb": "libvo_amrwbenc", "dts": "dca", "dvd_subtitle": "dvdsub", "dvb_subtitle": "dvbsub",
}  # fmt: skip
"""The encoder that ffmpeg takes for the name of a codec, if it has it; else it might take one that opens a device."""

DECODERS = words("""
012v 4xm 8bps 8svx_exp 8svx_fib aac aac_fixed aac_latm aasc ac3 ac3_fixed acelp.kelvin adpcm_4xm adpcm_adx adpcm_afc
adpcm_agm adpcm_aica adpcm_argo adpcm_circus adpcm_ct adpcm_dtk adpcm_ea adpcm_ea_maxis_xa adpcm_ea_r1 adpcm_ea_r2
adpcm_ea_r3 adpcm_ea_xas adpcm_ima_acorn adpcm_ima_alp adpcm_ima_amv adpcm_ima_apc adpcm_ima_apm adpcm_ima_cunning
adpcm_ima_dat4 adpcm_ima_dk3 adpcm_ima_dk4 adpcm_ima_ea_eacs adpcm_ima_ea_sead adpcm_ima_escape adpcm_ima_hvqm2
adpcm_ima_hvqm4 adpcm_ima_iss adpcm_ima_magix adpcm_ima_moflex adpcm_ima_mtf adpcm_ima_oki adpcm_ima_pda adpcm_ima_qt
adpcm_ima_rad adpcm_ima_smjpeg adpcm_ima_ssi adpcm_ima_wav adpcm_ima_ws adpcm_ima_xbox adpcm_ms adpcm_mtaf adpcm_n64
adpcm_psx adpcm_psxc adpcm_sanyo adpcm_sbpro_2 adpcm_sbpro_3 adpcm_sbpro_4 adpcm_swf adpcm_thp adpcm_thp_le adpcm_vima
adpcm_xa adpcm_xmd adpcm_yamaha adpcm_zork agm ahx aic alac alias_pix als amrnb amrwb amv anm ansi apac ape apng aptx
aptx_hd apv arbc argo ass asv1 asv2 atrac1 atrac3 atrac3al atrac3plus atrac3plusal atrac9 aura aura2 av1 avrn avrp avs
avui ayuv bethsoftvid bfi binkaudio_dct binkaudio_rdft binkvideo bintext bitpacked bmp bmv_audio bmv_video bonk
brender_pix c93 camstudio camtasia cavs cbd2_dpcm cc_dec cdgraphics cdtoons cdxl cfhd cinepak clearvideo cljr cllc
comfortnoise cook cpia cri cyuv dca dds derf_dpcm dfa dfpwm dirac dnxhd dolby_e dpx dsd_lsbf dsd_lsbf_planar dsd_msbf
dsd_msbf_planar dsicinaudio dsicinvideo dss_sp dst dvaudio dvbsub dvdsub dvvideo dxa dxtory dxv eac3 eacmv eamad eatgq
eatgv eatqi escape124 escape130 evrc exr fastaudio ffv1 ffvhuff fic fits flac flashsv flashsv2 flic flv fmvc fraps frwu
ftr g2m g722 g723_1 g726 g726le g728 g729 gdv gem gif gremlin_dpcm gsm gsm_ms h261 h263 h263i h263p h264 hap hca hcom
hdr hevc hnm4video hq_hqa hqx huffyuv hymt iac idcinvideo idf iff ilbc imc imm4 imm5 indeo2 indeo3 indeo4 indeo5
interplay_dpcm interplayacm interplayvideo ipu jacosub jpeg2000 jpegls jv kgv1 kmvc lagarith lead libaom-av1 libcodec2
libdav1d libgsm libgsm_ms libjxl libjxl_anim libopencore_amrnb libopencore_amrwb libopenh264 libopenjpeg libopus
libspeex libuavs3d libvorbis libvpx libvpx-vp9 libzvbi_teletextdec loco lscr m101 mace3 mace6 magicyuv mdec media100
metasound microdvd mimic misc4 mjpeg mjpegb mlp mmvideo mobiclip motionpixels mov_text mp1 mp1float mp2 mp2float mp3
mp3adu mp3adufloat mp3float mp3on4 mp3on4float mpc7 mpc8 mpeg1video mpeg2video mpeg4 mpegvideo mpl2 msa1 mscc msmpeg4
msmpeg4v1 msmpeg4v2 msnsiren msp2 msrle mss1 mss2 msvideo1 mszh mts2 mv30 mvc1 mvc2 mvdv mvha mwsc mxpeg nellymoser
notchlc nuv on2avc opus osq paf_audio paf_video pam pbm pcm_alaw pcm_bluray pcm_dvd pcm_f16le pcm_f24le pcm_f32be
pcm_f32le pcm_f64be pcm_f64le pcm_lxf pcm_mulaw pcm_s16be pcm_s16be_planar pcm_s16le pcm_s16le_planar pcm_s24be
pcm_s24daud pcm_s24le pcm_s24le_planar pcm_s32be pcm_s32le pcm_s32le_planar pcm_s64be pcm_s64le pcm_s8 pcm_s8_planar
pcm_sga pcm_u16be pcm_u16le pcm_u24be pcm_u24le pcm_u32be pcm_u32le pcm_u8 pcm_vidc pcx pfm pgm pgmyuv pgssub pgx phm
photocd pictor pixlet pjs png ppm prores prores_raw prosumer psd ptx qcelp qdm2 qdmc qdraw qoa qoi qpeg qtrle r10k r210
ralf rasc rawvideo real_144 real_288 realtext rka rl2 roq_dpcm roqvideo rpza rscc rtv1 rv10 rv20 rv30 rv40 rv60 s302m
sami sanm sbc scpr screenpresso sdx2_dpcm sga sgi sgirle sheervideo shorten simbiosis_imx sipr siren smackaud smackvid
smc smvjpeg snow sol_dpcm sonic sp5x speedhq speex srgc srt ssa stl subrip subviewer subviewer1 sunrast svq1 svq3 tak
targa targa_y216 tdsc text theora thp tiertexseqvideo tiff tmv truehd truemotion1 truemotion2 truemotion2rt truespeech
tscc2 tta twinvq txd ultimotion utvideo v210 v210x v308 v408 v410 vb vble vbn vc1 vc1image vcr1 vmdaudio vmdvideo vmix
vmnc vorbis vp3 vp4 vp5 vp6 vp6a vp6f vp7 vp8 vp9 vplayer vqavideo vqc vvc wady_dpcm wavarc wavesynth wavpack wbmp wcmv
webp webvtt wmalossless wmapro wmav1 wmav2 wmavoice wmv1 wmv2 wmv3 wmv3image wnv1 ws_snd1 xan_dpcm xan_wc3 xan_wc4 xbin
xbm xface xl xma1 xma2 xpm xsub xwd y41p ylc yop yuv4 zerocodec zlib zmbv
""")
