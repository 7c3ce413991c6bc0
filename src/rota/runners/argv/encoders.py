"""Parameter strings of encoders: `keyint=60:scenecut=0`. Known keys only; those that name files are judged as paths.

Spec: runners, scenario S71. Quotes and backslashes are refused: no harmless value needs them, and x264opts and
x264-params read them differently.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rota.errors import ArgvNotAllowed
from rota.runners.argv.files import Touched
from rota.runners.argv.words import words

_VALUE = re.compile(r"[\w.,+\-/*()| ]*")
_ZONE = re.compile(r"\d+,\d+(?P<parameters>(?:,[\w=.+-]+)*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Parameters:
    """The keys that an encoder knows: harmless ones, and those that name files."""

    harmless: frozenset[str]
    files: Mapping[str, Literal["read", "write"]]
    words: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Values of the latter that name no file."""


_X264 = Parameters(
    harmless=words("""
        8x8dct aq-mode aq-strength asm annexb aud alternative-transfer analyse avcintra-class avcintra-flavor b-adapt
        b-bias b-pyramid bff bframes bitrate bluray-compat cabac cabac-idc chroma-me chroma-qp-offset chromaloc
        colormatrix colorprim constrained-intra cplx-blur cplxblur cqm4 cqm4i cqm4ic cqm4iy cqm4p cqm4pc cqm4py cqm8
        cqm8i cqm8p crf crf-max crop-rect dct-decimate deadzone-inter deadzone-intra deblock direct direct-pred
        fake-interlaced fast-pskip filler filter force-cfr fps frame-packing fullrange input-csp interlaced
        intra-refresh ipratio keyint keyint-min level lookahead-threads mastering-display cll mb-tree mbtree me
        me-range merange min-keyint mixed-refs mvrange mvrange-thread nal-hrd nr nf no-deblock open-gop overscan
        partitions pass pbratio pic-struct preset profile psnr psy psy-rd pulldown qblur qcomp qp qpmax qpmin qpstep
        ratetol rc-lookahead ref reference repeat-headers sar scenecut scenecut-bias scenecut-threshold slice-max-mbs
        slice-max-size slice-min-mbs slices slices-max sliced-threads sps-id ssim stitchable subme subq sync-lookahead
        tff thread-input threads transfer trellis tune vbv-bufsize vbv-init vbv-maxrate vfr-input videoformat weight-b
        weightb weightp zones global-header deterministic n-deterministic cpu-independent bframe-adaptive ip-factor
        pb-factor dpb-size frameref level-idc log log-level mv-range mv-range-thread me-range qp-constant qp-max
        qp-min qp-step
        """),
    # `cqm` is a word or, whatever else it is, a file; so x264 reads it.
    files={"stats": "write", "qpfile": "read", "cqm": "read", "cqmfile": "read", "dump-yuv": "write"},
    words={"cqm": frozenset({"flat", "jvt"})},
)

_X265 = Parameters(
    harmless=words("""
        allow-non-conformance amp analysis-load-reuse-level analysis-save-reuse-level annexb aq-mode aq-motion
        aq-strength asm atc-sei aud b-adapt b-intra b-pyramid bframe-bias bframes bitrate cbqpoffs chromaloc cip cll
        colormatrix colorprim constrained-intra const-vbv copy-pic cplxblur crf crf-max crf-min crop-rect crqpoffs
        csv-log-level ctu cu-lossless cu-stats cutree deblock dhdr10-opt display-window dolby-vision-profile
        dup-threshold dynamic-rd dynamic-refine early-skip eob eos fades fast-intra field fps frame-dup frame-threads
        frames gop-lookahead hash hdr hdr-opt hdr10 hdr10-opt hevc-aq high-tier hist-scenecut hme hme-range hme-search
        hrd hrd-concat idr-recovery-sei info input-depth interlace ipratio keyint level level-idc
        limit-modes limit-refs limit-sao limit-tu log-level lookahead-slices lookahead-threads lossless lowpass-dct
        master-display mastering-display max-ausize-factor max-cll max-luma max-merge max-tu-size mcstf me merange
        min-cu-size min-keyint min-luma multi-pass-opt-analysis multi-pass-opt-distortion multi-pass-opt-rps
        nr-inter nr-intra open-gop opt-cu-delta-qp opt-qp-pps opt-ref-list-length-pps output-depth overscan pass
        pbratio pme pmode pools preset profile psnr psy-rd psy-rdoq pvf qblur qcomp qg-size qp qpmax qpmin qpstep radl
        range rc-grain rc-lookahead rd rdoq rdoq-level rdpenalty rect ref refine-analysis-type refine-ctu-distortion
        refine-inter refine-intra refine-mv repeat-headers rskip rskip-edge-threshold sao sao-non-deblock sar
        scale-factor scenecut scenecut-aware-qp scenecut-bias selective-sao signhide single-sei skip-rd-refine slices
        slow-firstpass splitrd-skip ssim ssim-rd strict-cbr strong-intra-smoothing sub-me subme svt tier
        temporal-layers temporal-mvp transfer tskip tskip-fast tu-inter-depth tu-intra-depth tune uhd-bd vbv-bufsize
        vbv-end vbv-init vbv-live-multi-pass vbv-maxrate video-signal-type-preset videoformat vui-hrd-info
        vui-timing-info wavefront weightb weightp wpp zones numa-pools aq-bias-strength masking-strength
        analysis-reuse-level analyze-src-pics chunk-end chunk-start ctu-info force-flush hist-threshold input-csp
        input-res ip-factor log2-max-poc-lsb max-vbv-fullness min-vbv-fullness pb-factor pic-struct
        qp-adaptation-range splice total-frames vbv-end-fr-adj
        """),
    files={
        "stats": "write",
        "csv": "write",
        "analysis-save": "write",
        "analysis-load": "read",
        "analysis-reuse-file": "write",
        "qpfile": "read",
        "scaling-list": "read",
        "lambda-file": "read",
        "dhdr10-info": "read",
        "nalu-file": "read",
        "dolby-vision-rpu": "read",
        "recon": "write",
        "refine-analysis-file": "read",
    },
    words={"scaling-list": frozenset({"off", "default"})},
)

_SVTAV1 = Parameters(
    harmless=words("""
        adaptive-quantization aq-mode asm avif bias-pct buf-initial-sz buf-optimal-sz buf-sz chroma-sample-position
        color-primaries color-range content-light crf enable-cdef enable-dg enable-dlf enable-force-key-frames
        enable-hdr enable-mfmv enable-overlays enable-qm enable-restoration enable-stat-report enable-tf enable-tpl-la
        enable-variance-boost fast-decode film-grain film-grain-denoise frame-luma-bias gop-constraint-rc
        hierarchical-levels input-depth irefresh-type keyint level level-of-parallelism lookahead lossless lp
        luminance-qp-bias mastering-display matrix-coefficients max-qp max-tx-size maxsection-pct mbr-overshoot-pct
        min-qp minsection-pct mrp-level no-progress overshoot-pct pin pred-struct preset profile psy-rd qm-max qm-min
        qp qp-scale-compress-strength rc recode-loop resize-denom resize-kf-denom resize-mode s-frame scd scm
        sframe-dist sframe-mode sharpness sharp-tx ss startup-mg-size superres-denom superres-kf-denom
        superres-kf-qthres superres-mode superres-qthres tbr temporal-filtering-strength tf-strength tile-columns
        tile-rows transfer-characteristics tune undershoot-pct unpin use-fixed-qindex-offsets variance-boost-curve
        variance-boost-strength variance-octile vbr-bias-pct chroma-qindex-offsets chroma-u-ac-qindex-offset
        chroma-u-dc-qindex-offset chroma-v-ac-qindex-offset chroma-v-dc-qindex-offset color-format
        compressed-ten-bit-format fps-denom fps-num intra-period key-frame-chroma-qindex-offset
        key-frame-qindex-offset luma-y-dc-qindex-offset pass rmv tier
        """),
    files={"stats": "write"},
)

_AOM = Parameters(
    harmless=words("""
        ab-partitions aq-mode arnr-maxframes arnr-strength auto-alt-ref bias-pct buf-initial-sz buf-optimal-sz buf-sz
        cdf-update-mode chroma-subsampling-x chroma-subsampling-y color-primaries color-range cpu-used cq-level
        deltaq-mode deltaq-strength denoise-block-size denoise-noise-level disable-trellis-quant drop-frame
        enable-cdef enable-chroma-deltaq enable-dnl-denoising enable-fwd-kf enable-keyframe-filtering enable-qm
        enable-rect-partitions enable-restoration enable-tpl-model end-usage error-resilient fp-mt frame-parallel
        gf-cbr-boost intra-default-tx-only kf-max-dist kf-min-dist lag-in-frames loopfilter-sharpness lossless
        matrix-coefficients max-gf-interval max-intra-rate max-partition-size max-q min-gf-interval min-partition-size
        min-q monochrome noise-sensitivity overshoot-pct passes profile qm-max qm-min quant-b-adapt resize-denominator
        resize-kf-denominator resize-mode row-mt sb-size sharpness static-thresh superres-denominator superres-mode
        target-bitrate target-seq-level-idx threads tile-columns tile-rows transfer-characteristics tune tune-content
        undershoot-pct use-16bit-internal auto-intra-tools-off coeff-cost-upd-freq delta-lf-mode disable-kf dist-metric
        dv-cost-upd-freq enable-1to4-partitions enable-ab-partitions enable-angle-delta enable-cfl-intra
        enable-diagonal-intra enable-diff-wtd-comp enable-directional-intra enable-dist-wtd-comp enable-dual-filter
        enable-filter-intra enable-flip-idtx enable-global-motion enable-interinter-wedge enable-interintra-comp
        enable-interintra-wedge enable-intra-edge-filter enable-intrabc enable-masked-comp enable-obmc
        enable-onesided-comp enable-order-hint enable-overlay enable-paeth-intra enable-palette enable-rect-tx
        enable-ref-frame-mvs enable-smooth-interintra enable-smooth-intra enable-tx-size-search enable-tx64
        enable-warped-motion film-grain-test force-video-mode frame-boost full-still-picture-hdr fwd-kf-dist
        gf-max-pyr-height gf-min-pyr-height kf-max-pyr-height large-scale-tile loopfilter-control max-inter-rate
        max-reference-frames maxsection-pct min-cr minsection-pct mode-cost-upd-freq mtu-size mv-cost-upd-freq
        num-tile-groups reduced-reference-set reduced-tx-type-set sb-qp-sweep set-tier-mask sframe-dist sframe-mode
        skip strict-level-conformance superres-kf-denominator superres-kf-qthresh superres-qthresh tile-height
        tile-width timing-info use-fixed-qp-offsets use-inter-dct-only use-intra-dct-only use-intra-default-tx-only
        vbr-corpus-complexity-lap
        """),
    files={},
)

_RAV1E = Parameters(
    harmless=words("""
        bitrate content_light height key_frame_interval low_latency mastering_display matrix min_key_frame_interval
        min_quantizer primaries quantizer range rdo_lookahead_frames reservoir_frame_delay speed threads tile_cols
        tile_rows tiles transfer tune width
        """),
    files={},
)

KINDS: Mapping[str, Parameters] = {
    "x264_params": _X264,
    "x265_params": _X265,
    "svtav1_params": _SVTAV1,
    "aom_params": _AOM,
    "rav1e_params": _RAV1E,
}


def _is_zones(value: str, known: Parameters) -> bool:
    """Zones of frames hold parameters of their own: `0,100,crf=20,no-psy/101,200,q=30`."""
    for zone in value.split("/"):
        found = _ZONE.fullmatch(zone)
        if not found:
            return False
        for part in filter(None, found["parameters"].split(",")):
            key, _, number = part.partition("=")
            name = key.replace("_", "-").removeprefix("no-")
            if name not in known.harmless | {"q", "b"} or not re.fullmatch(r"[\w.+-]*", number):
                return False
    return True


_FURTHER = r"(?:\.(?:mbtree|cutree))?(?:\.temp)?"
_PASS_LOGS: Mapping[str, tuple[str, ...]] = {
    "x264_params": ("x264_2pass.log",),
    "x265_params": ("x265_2pass.log", "x265_analysis.dat"),
}
"""Where statistics go if no name is given for them."""


def compile_parameters(kind: str, text: str, *, argument: str, touched: Touched) -> str:
    """Judge a parameter string and write it anew.

    Args:
        kind: A key of `KINDS`.
        text: The string, such as `keyint=60:no-cabac`.
        argument: Where it stands, for a message.
        touched: Takes the files that it names.

    Returns:
        The string, files resolved.

    Raises:
        ArgvNotAllowed: A key is unknown, or a file lies outside.
    """
    known = KINDS[kind]
    out: list[str] = []
    for part in text.split(":"):
        if not part:
            continue
        key, equals, value = part.partition("=")
        name = key.strip().replace("_", "-") if known is not _RAV1E else key.strip()
        plain = name if name in known.harmless or name in known.files else name.removeprefix("no-").removeprefix("no")
        where = f"{argument}, parameter {key[:40]!r}"
        if plain in known.files and name == plain:
            out.append(f"{name}={_file(where, plain, value, known=known, touched=touched)}")
        elif plain not in known.harmless:
            raise ArgvNotAllowed(where, "this parameter is not allowed")
        elif not (_is_zones(value, known) if plain == "zones" else _VALUE.fullmatch(value)):
            raise ArgvNotAllowed(where, f"the value {value[:40]!r} is not allowed")
        else:
            out.append(f"{name}{equals}{value}")
    if any(part.startswith("pass=") for part in out):
        for log in _PASS_LOGS.get(kind, ()):
            touched.write_pattern(f"{argument}, parameter pass", log, re.escape(log) + _FURTHER)
    return ":".join(out)


def _file(where: str, key: str, value: str, *, known: Parameters, touched: Touched) -> str:
    if value in known.words.get(key, ()):
        return value
    if "\\" in value or "'" in value or value != value.strip():
        raise ArgvNotAllowed(where, "a file's name here may hold no quote, no backslash and no blank at its ends")
    if known.files[key] == "read":
        return "./" + touched.read(where, value)[0]
    path = touched.write(where, value)
    # Both encoders keep further files beside their statistics: `.mbtree`, `.cutree`, `.temp`.
    touched.write_pattern(where, value, _further(path))
    return "./" + path


def _further(path: str) -> str:
    return re.escape(path.rpartition("/")[2]) + _FURTHER
