"""Options of the ffmpeg command line: where each may stand and what its value is.

What is in no table is refused, and what is refused on purpose has its reason in `REFUSED`. Options of codecs and
formats with numbers come from `options_numeric`; those with texts stand here, because a text can be a path.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from rota.runners.argv import options_numeric
from rota.runners.argv.words import words

Place = Literal["global", "input", "output"]


@dataclass(frozen=True, slots=True)
class OptionRule:
    """One option: the kind of its value, where it may stand, and whether a stream specifier may follow its name."""

    value: str
    places: frozenset[Place]
    specifier: bool = False


_PLACES: Mapping[str, frozenset[Place]] = {
    "g": frozenset({"global"}),
    "i": frozenset({"input"}),
    "o": frozenset({"output"}),
    "io": frozenset({"input", "output"}),
}

# A row: the kind of value, the places (g everywhere, i before an input, o before an output), the names.
# A colon after a name: a stream specifier may follow it.
_ROWS = """
bool g y n hide_banner stats stdin copyts start_at_zero xerror benchmark benchmark_all debug_ts
bool g ignore_unknown copy_unknown auto_conversion_filters psnr qphist print_graphs
word g vsync copytb abort_on
number g filter_threads filter_complex_threads max_error_rate
number g stats_period dts_delta_threshold dts_error_threshold
number g frame_drop_threshold async adrift_threshold timelimit filter_buffered_frames
level g v loglevel
graph_complex g filter_complex lavfi
script_complex g filter_complex_script
write g progress vstats_file print_graphs_file
word g print_graphs_format
number g vstats_version
write o x265-stats: stats_enc_pre: stats_enc_post: stats_mux_pre:
text o stats_enc_pre_fmt: stats_enc_post_fmt: stats_mux_pre_fmt:
target o target
bool io vn an sn dn bitexact accurate_seek
bool i re autorotate: find_stream_info
bool o shortest autoscale: copyinkf: fix_sub_duration force_fps: fix_sub_duration_heartbeat:
bool i fix_sub_duration
time io t to ss itsoffset sseof
number i seek_timestamp stream_loop readrate readrate_initial_burst
number i readrate_catchup isync thread_queue_size itsscale:
number i display_rotation: guess_layout_max:
bool i display_hflip: display_vflip:
number i drop_changed: reinit_filter:
plain io r: s: pix_fmt: ar: ac: channel_layout: ch_layout: sample_fmt: frame_size
format io f
codec io c: codec: vcodec acodec scodec dcodec
word io tag: vtag atag stag discard: canvas_size: apply_cropping:
number io threads:
read_attached i dump_attachment:
safe i safe
pattern_type i pattern_type
hwaccel i hwaccel:
plain i pixel_format
charset i sub_charenc:
text i decryption_key decryption_keys activation_bytes audible_key audible_iv palette: txt_page:
map o map
plain o map_metadata: map_chapters map_channel streamid program: timecode: isync
text o metadata: disposition:
keyframes o force_key_frames:
number o fs frames: vframes aframes dframes q:
number o qscale: aq muxdelay muxpreload bits_per_raw_sample: top: shortest_buf_duration
number o max_muxing_queue_size: muxing_queue_data_threshold: fpsmax: copypriorss:
number o vol apad: strict: f_strict
plain o aspect: profile: level: preset: tune: vb: vprofile: aprofile: vlevel:
plain o time_base: enc_time_base: fps_mode: rc_override: intra_matrix: inter_matrix:
plain o chroma_intra_matrix: partitions: deblock: psy-rd: wpredp:
text o palette:
plain o timestamp rc_eq: gop_timecode: vendor: layer_rates:
graph o filter: vf af
script o filter_script:
passlog o passlogfile:
number o pass:
attach o attach
bsf o bsf: vbsf absf
x264_params o x264-params: x264opts:
x265_params o x265-params:
svtav1_params o svtav1-params:
aom_params o aom-params:
rav1e_params o rav1e-params:
plain o ts-parameters:
word o brand encryption_scheme encryption_key encryption_kid hash boundary_tag
format_inside o segment_format
write o segment_list segment_header_filename
muxer_options o segment_format_options hls_segment_options hls_ts_options hls_vtt_options format_options
prefix o segment_list_entry_prefix hls_base_url
plain o segment_times segment_frames reference_stream adaptation_sets
stream_groups o var_stream_map cc_stream_map
hls_flags o hls_flags
name_pattern o hls_segment_filename hls_subtitle_path
name_beside o hls_fmp4_init_filename master_pl_name init_seg_name
name_beside o media_seg_name single_file_name hls_master_name
key_info o hls_key_info_file
strftime o strftime
"""

REFUSED: Mapping[str, str] = {
    "protocol_whitelist": "which protocols may be used is decided by the runner",
    "protocol_blacklist": "which protocols may be used is decided by the runner",
    "format_whitelist": "which formats may be used is decided by the runner",
    "codec_whitelist": "which codecs may be used is decided by the runner",
    "report": "it writes a log whose place cannot be chosen",
    "vstats": "it writes a file whose place cannot be chosen: give one with -vstats_file",
    "sdp_file": "a session sends nothing to a network",
    "fpre": "preset files are not allowed",
    "pre": "preset files are not allowed",
    "vpre": "preset files are not allowed",
    "apre": "preset files are not allowed",
    "spre": "preset files are not allowed",
    "init_hw_device": "devices are not opened",
    "filter_hw_device": "devices are not opened",
    "hwaccel_device": "devices are not opened",
    "hwaccel_output_format": "devices are not opened",
    "vaapi_device": "devices are not opened",
    "qsv_device": "devices are not opened",
    "enable_drefs": "a film may not name other files",
    "use_absolute_path": "a film may not name other files",
    "allowed_extensions": "playlists are not opened",
    "allowed_segment_extensions": "playlists are not opened",
    "extension_picky": "playlists are not opened",
    "fifo_format": "the muxer fifo is not allowed",
    "method": "a session sends nothing to a network",
    "headers": "a session sends nothing to a network",
    "http_user_agent": "a session sends nothing to a network",
    "utc_timing_url": "a session sends nothing to a network",
    "listen": "a session listens to nothing",
    "follow": "a file is read to its end, not for ever",
    "max_alloc": "how much memory may be used is decided by the runner",
    "cpuflags": "it changes how ffmpeg itself runs",
    "recast_media": "it changes how ffmpeg itself runs",
    "hls_enc": "encryption is set up with -hls_key_info_file",
    "strftime_mkdir": "folders are made by the runner",
    "export_path_metadata": "paths of the runner are not shown",
}


def _rules() -> Mapping[str, OptionRule]:
    found: dict[str, OptionRule] = {}
    for table, letters in (
        (options_numeric.OF_INPUTS, "i"),
        (options_numeric.OF_OUTPUTS, "o"),
        (options_numeric.OF_BOTH, "io"),
    ):
        for name in table.split():
            found[name] = OptionRule("plain", _PLACES[letters], specifier=True)
    by_hand: dict[str, OptionRule] = {}
    for row in _ROWS.strip().splitlines():
        value, letters, *names = row.split()
        for name in names:
            places = _PLACES[letters]
            if name.rstrip(":") in by_hand:
                places |= by_hand[name.rstrip(":")].places
            by_hand[name.rstrip(":")] = OptionRule(value, places, specifier=name.endswith(":"))
    return {**found, **by_hand}


RULES: Mapping[str, OptionRule] = _rules()

INFORMATION = words(
    """
    version buildconf formats muxers demuxers codecs decoders encoders bsfs protocols filters pix_fmts layouts hwaccels
    sample_fmts dispositions colors L license
    """
)
"""Options that only print what the program can do; allowed as the only argument."""
