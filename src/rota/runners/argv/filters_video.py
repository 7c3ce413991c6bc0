"""The video filters that a graph may use, and the options of each; data only.

Taken from `ffmpeg -h filter=NAME` of 5.1.9, 8.1.2 and 9.0.2. Filters that run code, talk to devices or to a network
are left out, and with them their names: what is not here is refused. Which options name files is said in
`filters.py`.
"""

# One filter a paragraph: its name, then its options. A line that is indented goes on.
TABLE = """
a3dscope fov length pitch r rate roll s size xpos xzoom yaw ypos yzoom zpos zzoom
abitscope colors m mode r rate s size
addroi clear h qoffset w x y
adrawgraph bg fg1 fg2 fg3 fg4 m1 m2 m3 m4 max min mode r rate s size slide
agraphmonitor f flags m mode o opacity r rate s size
ahistogram acount ascale dmode hmode r rate rheight s scale size slide
allrgb d duration r rate sar
allyuv d duration r rate sar
alphaextract
alphamerge eof_action repeatlast shortest ts_sync_mode
amplify factor high low planes radius threshold tolerance
ass alpha f filename fontsdir original_size shaping
atadenoise 0a 0b 0s 1a 1b 1s 2a 2b 2s a p s
avectorscope ac af bc bf draw gc gf m mirror mode r rate rc rf s scale size swap zoom
avgblur planes sizeX sizeY
avsynctest a ag amplitude bg c cycle d delay dl duration fg fr framerate p period s samplerate size sr
backgroundkey blend similarity threshold
bbox min_val
bench action
bilateral planes sigmaR sigmaS
bitplanenoise bitplane filter
blackdetect alpha black_min_duration d pic_th picture_black_ratio_th pix_th pixel_black_th
blackframe amount thresh threshold
blend all_expr all_mode all_opacity c0_expr c0_mode c0_opacity c1_expr c1_mode c1_opacity c2_expr c2_mode c2_opacity
    c3_expr c3_mode c3_opacity eof_action repeatlast shortest ts_sync_mode
blockdetect period_max period_min planes
blurdetect block_height block_pct block_width high low planes radius
bm3d block bstep estim group hdthr mstep planes range ref sigma thmse
boxblur alpha_power alpha_radius ap ar chroma_power chroma_radius cp cr lp lr luma_power luma_radius
bwdif deint mode parity
cas planes strength
ccrepack
cellauto f filename full p pattern r random_fill_ratio random_seed rate ratio rule s scroll seed size start_full
    stitch
chromahold blend color similarity yuv
chromakey blend color similarity yuv
chromanr distance sizeh sizew steph stepw thres threu threv threy
chromashift cbh cbv crh crv edge
ciescope cie contrast corrgamma fill gamma gamuts i intensity s showwhite size system
codecview block frame_type ft mv mv_type mvt qp
color c color d duration r rate s sar size
colorbalance bh bm bs gh gm gs pl rh rm rs
colorchannelmixer aa ab ag ar ba bb bg br ga gb gg gr pa pc ra rb rg rr
colorchart d duration patch_size preset r rate sar
colorcontrast by byw gm gmw pl rc rcw
colorcorrect analyze bh bl rh rl saturation
colordetect mode
colorhold blend color similarity
colorize hue lightness mix saturation
colorkey blend color similarity
colorlevels aimax aimin aomax aomin bimax bimin bomax bomin gimax gimin gomax gomin preserve rimax rimin romax romin
colormap kernel nb_patches patch_size type
colormatrix dst src
colorspace all clipgamut dither fast format iall iprimaries irange ispace itrc primaries range space trc wpadapt
colorspectrum d duration r rate s sar size type
colortemperature mix pl temperature
convolution 0bias 0m 0mode 0rdiv 1bias 1m 1mode 1rdiv 2bias 2m 2mode 2rdiv 3bias 3m 3mode 3rdiv
convolve eof_action impulse noise planes repeatlast shortest ts_sync_mode
copy
corr eof_action repeatlast shortest ts_sync_mode
cover_rect cover mode
crop exact h keep_aspect out_h out_w w x y
cropdetect high limit low max_outliers mode mv_threshold reset reset_count round skip
cue buffer cue preroll
curves all b blue g green interp m master plot preset psfile r red
datascope axis components format mode opacity s size x y
dblur angle planes radius
dctdnoiz e expr n overlap s sigma
deband 1thr 2thr 3thr 4thr b blur c coupling d direction r range
deblock alpha beta block delta filter gamma planes
decimate blockx blocky chroma cycle dupthresh mixed ppsrc scthresh
deconvolve eof_action impulse noise planes repeatlast shortest ts_sync_mode
dedot ct lt m tc tl
deflate threshold0 threshold1 threshold2 threshold3
deflicker bypass m mode s size
dejudder cycle
delogo h show w x y
deshake blocksize contrast edge filename h opencl rx ry search w x y
despill alpha blue brightness expand green mix red type
detelecine first_field pattern start_frame
dilation coordinates threshold0 threshold1 threshold2 threshold3
displace edge
doubleweave first_field
drawbox box_source c color h height replace t thickness w width x y
drawgraph bg fg1 fg2 fg3 fg4 m1 m2 m3 m4 max min mode r rate s size slide
drawgrid c color h height replace t thickness w width x y
drawtext alpha basetime bordercolor borderw box boxborderw boxcolor boxh boxw expansion fix_bounds font fontcolor
    fontcolor_expr fontfile fontsize ft_load_flags line_spacing r rate reload shadowcolor shadowx shadowy
    start_number tabsize tc24hmax text text_align text_shaping text_source textfile timecode timecode_rate x y
    y_align
edgedetect high low mode planes
elbg codebook_length l n nb_steps pal8 s seed use_alpha
entropy mode
epx n
eq brightness contrast eval gamma gamma_b gamma_g gamma_r gamma_weight saturation
erosion coordinates threshold0 threshold1 threshold2 threshold3
estdif dcost deint ecost interp mcost mode parity redge rslope
exposure black exposure
extractplanes planes
fade alpha c color d duration n nb_frames s st start_frame start_time t type
feedback h w x y
fftdnoiz amount block method next overlap planes prev sigma window
fftfilt dc_U dc_V dc_Y eval weight_U weight_V weight_Y
field type
fieldhint hint mode
fieldmatch blockx blocky chroma combdbg combmatch combpel cthresh field mchroma mode order ppsrc scthresh y0 y1
fieldorder order
fifo
fillborders bottom color left mode right top
find_rect discard mipmaps object threshold xmax xmin ymax ymin
floodfill d0 d1 d2 d3 s0 s1 s2 s3 x y
format alpha_modes color_ranges color_spaces pix_fmts
fps eof_action fps round start_time
framepack format
framerate flags fps interp_end interp_start scene
framestep step
freezedetect d duration n noise
freezeframes first last replace
fspp qp quality strength use_bframe_qp
gblur planes sigma sigmaV steps
geq a alpha_expr b blue_expr cb cb_expr cr cr_expr g green_expr i interpolation lum lum_expr r red_expr
gradfun radius strength
gradients c0 c1 c2 c3 c4 c5 c6 c7 d duration n nb_colors r rate s seed size speed t type x0 x1 y0 y1
graphmonitor f flags m mode o opacity r rate s size
grayworld
greyedge difford minknorm sigma
guided eps guidance mode planes radius sub
haldclut clut eof_action interp repeatlast shortest ts_sync_mode
haldclutsrc d duration level r rate sar
hflip
histeq antibanding intensity strength
histogram b bgopacity c colors_mode components d display_mode f fgopacity l level_height levels_mode m scale_height
hqdn3d chroma_spatial chroma_tmp luma_spatial luma_tmp
hqx n
hstack inputs shortest
hsvhold blend hue sat similarity val
hsvkey blend hue sat similarity val
hue H b h s
huesaturation bw colors gw hue intensity lightness rw saturation strength
hysteresis eof_action planes repeatlast shortest threshold ts_sync_mode
identity eof_action repeatlast shortest ts_sync_mode
idet analyze_interlaced_flag half_life intl_thres prog_thres rep_thres
il a alpha_mode alpha_swap as c chroma_mode chroma_swap cs l ls luma_mode luma_swap
inflate threshold0 threshold1 threshold2 threshold3
interlace lowpass scan
interleave duration n nb_inputs
kerndeint map order sharp thresh twoway
kirsch delta planes scale
lagfun decay planes
latency
lenscorrection cx cy fc i k1 k2
libvmaf enable_transform eof_action feature log_fmt log_path model model_path ms_ssim n_subsample n_threads
    phone_model pool psnr repeatlast shortest ssim ts_sync_mode
life death_color f filename life_color mold mold_color r random_fill_ratio random_seed rate ratio rule s seed size
    stitch
limitdiff elasticity planes reference threshold
limiter max min planes
loop loop size start time
lumakey softness threshold tolerance
lut a b c0 c1 c2 c3 g r u v y
lut1d file interp
lut2 c0 c1 c2 c3 d eof_action repeatlast shortest ts_sync_mode
lut3d clut file interp
lutrgb a b c0 c1 c2 c3 g r u v y
lutyuv a b c0 c1 c2 c3 g r u v y
mandelbrot bailout end_pts end_scale inner maxiter morphamp morphxf morphyf outer r rate s size start_scale start_x
    start_y
maskedclamp overshoot planes undershoot
maskedmax planes
maskedmerge planes
maskedmin planes
maskedthreshold mode planes threshold
maskfun fill high low planes sum
median percentile planes radius radiusV
mcdeint mode parity qp
mergeplanes format map0p map0s map1p map1s map2p map2s map3p map3s mapping
mestimate mb_size method search_param
metadata direct expr file function key mode value
midequalizer planes
minterpolate fps mb_size mc_mode me me_mode mi_mode scd scd_threshold search_param vsbmc
mix duration inputs planes scale weights
monochrome cb cr high size
morpho eof_action mode planes repeatlast shortest structure ts_sync_mode
mpdecimate frac hi keep lo max
mptestsrc d duration m max_frames r rate t test
msad eof_action repeatlast shortest ts_sync_mode
multiply offset planes scale
negate components negate_alpha
nlmeans p pc r rc s
noformat alpha_modes color_ranges color_spaces pix_fmts
noise all_flags all_seed all_strength allf alls c0_flags c0_seed c0_strength c0f c0s c1_flags c1_seed c1_strength
    c1f c1s c2_flags c2_seed c2_strength c2f c2s c3_flags c3_seed c3_strength c3f c3s
normalize blackpt independence smoothing strength whitept
null
nnedi deint etype field nns nsize planes pscrn qual weights
nullsink
nullsrc d duration r rate s sar size
oscilloscope c g o s sc st t th tw tx ty x y
overlay alpha eof_action eval format repeatlast shortest ts_sync_mode x y
owdenoise chroma_strength cs depth ls luma_strength
pad aspect color eval h height w width x y
pal100bars d duration r rate s sar size
pal75bars d duration r rate s sar size
palettegen max_colors reserve_transparent stats_mode transparency_color use_alpha
paletteuse alpha_threshold bayer_scale color_search debug_accuracy debug_kdtree diff_mode dither mean_err new
    use_alpha
perlin octaves persistence r random_mode random_seed rate s seed size tscale xscale yscale
perms mode seed
perspective eval interpolation sense x0 x1 x2 x3 y0 y1 y2 y3
phase mode
photosensitivity bypass f frames skip t threshold
pixdesctest
pixelize h height m mode p planes w width
pixscope h o w wx wy x y
pp subfilters
pp7 mode qp
premultiply inplace planes
premultiply_dynamic inplace planes
prewitt delta planes scale
pseudocolor c0 c1 c2 c3 i index opacity p preset
psnr eof_action f output_max repeatlast shortest stats_file stats_version ts_sync_mode
pullup jb jl jr jt mp sb
qp qp
random frames seed
readeia608 chp lp scan_max scan_min spw
readvitc scan_max thr_b thr_w
realtime limit speed
remap fill format
removegrain m0 m1 m2 m3
removelogo f filename
repeatfields
reverse
rgbashift ah av bh bv edge gh gv rh rv
rgbtestsrc co complement d duration r rate s sar size
roberts delta planes scale
rotate a angle bilinear c fillcolor oh out_h out_w ow
sab chroma_pre_filter_radius chroma_radius chroma_strength cpfr cr cs lpfr lr ls luma_pre_filter_radius luma_radius
    luma_strength
scale alphablend dst_format dst_h_chr_pos dst_range dst_v_chr_pos dsth dstw eof_action eval flags force_divisible_by
    force_original_aspect_ratio gamma h height in_chroma_loc in_color_matrix in_h_chr_pos in_primaries in_range
    in_transfer in_v_chr_pos intent interl out_chroma_loc out_color_matrix out_h_chr_pos out_primaries out_range
    out_transfer out_v_chr_pos param0 param1 repeatlast reset_sar s scaler scaler_sub shortest size src_format
    src_h_chr_pos src_range src_v_chr_pos srch srcw sws_backends sws_dither sws_flags threads ts_sync_mode w width
scale2ref alphablend dst_format dst_h_chr_pos dst_range dst_v_chr_pos dsth dstw eval flags force_divisible_by
    force_original_aspect_ratio gamma h height in_chroma_loc in_color_matrix in_h_chr_pos in_primaries in_range
    in_transfer in_v_chr_pos intent interl out_chroma_loc out_color_matrix out_h_chr_pos out_primaries out_range
    out_transfer out_v_chr_pos param0 param1 reset_sar s scaler scaler_sub size src_format src_h_chr_pos src_range
    src_v_chr_pos srch srcw sws_backends sws_dither sws_flags threads w width
scdet s sc_pass t threshold
scharr delta planes scale
scroll h horizontal hpos v vertical vpos
segment frames timestamps
select e expr n outputs
selectivecolor blacks blues correction_method cyans greens magentas neutrals psfile reds whites yellows
sendcmd c commands f filename
separatefields
setdar dar max r ratio
setfield mode
setparams alpha_mode chroma_location color_primaries color_trc colorspace field_mode range
setpts expr strip_fps
setrange range
setsar max r ratio sar
settb expr tb
shear c fillcolor interp shx shy
showcqt attack axis axis_h axisfile bar_g bar_h bar_t bar_v basefreq coeffclamp count cscheme csp endfreq fcount
    font fontcolor fontfile fps fullhd gamma gamma2 r rate s size sono_g sono_h sono_v tc text timeclamp tlength
    volume volume2
showcwt bar deviation direction imax imin iscale logb max min mode pps r rate rotation s scale size slide
showfreqs ascale averaging channels cmode colors data fscale minamp mode overlap r rate s size win_func win_size
showinfo checksum udu_sei_as_ascii
showpalette s
showspatial overlap r rate s size win_func win_size
showspectrum color data drange fps fscale gain legend limit mode opacity orientation overlap rotation s saturation
    scale size slide start stop win_func
showspectrumpic color drange fscale gain legend limit mode opacity orientation rotation s saturation scale size
    start stop win_func
showvolume b c dm dmc ds f h m o p r rate s t v w
showwaves colors draw mode n r rate s scale size split_channels
showwavespic colors draw filter s scale size split_channels
shuffleframes mapping
shufflepixels d direction h height m mode s seed w width
shuffleplanes map0 map1 map2 map3
sidedata mode type
sierpinski jump r rate s seed size type
signalstats c color out stat
signature detectmode filename format nb_inputs th_d th_dc th_di th_it th_xh
siti print_summary
smartblur alpha_radius alpha_strength alpha_threshold ar as at chroma_radius chroma_strength chroma_threshold cr cs
    ct lr ls lt luma_radius luma_strength luma_threshold
smptebars d duration r rate s sar size
smptehdbars d duration r rate s sar size
sobel delta planes scale
spectrumsynth channels orientation overlap sample_rate scale slide win_func
split outputs
spp dct idct mode qp quality use_bframe_qp
ssim eof_action f repeatlast shortest stats_file ts_sync_mode
ssim360 compute_chroma default_heatmap_height default_heatmap_width eof_action f frame_skip_ratio heatmap_str
    main_pad main_projection main_stereo ref_pad ref_projection ref_stereo repeatlast shortest stats_file
    ts_sync_mode use_tape
stereo3d in out
subtitles alpha charenc f filename fontsdir force_style original_size shaping si stream_index wrap_unicode
super2xsai
swaprect h w x1 x2 y1 y2
swapuv
tblend all_expr all_mode all_opacity c0_expr c0_mode c0_opacity c1_expr c1_mode c1_opacity c2_expr c2_mode
    c2_opacity c3_expr c3_mode c3_opacity
telecine first_field pattern
testsrc d decimals duration n r rate s sar size
testsrc2 alpha d duration r rate s sar size
thistogram b bgopacity c components d display_mode e ec ecolor envelope levels_mode m slide w width
threshold planes
thumbnail log n
tile color init_padding layout margin nb_frames overlap padding
tiltandshift end hold pad start tilt
tinterlace mode
tlut2 c0 c1 c2 c3
tmedian percentile planes radius
tmidequalizer planes radius sigma
tmix frames planes scale weights
tonemap desat param peak tonemap
tpad color start start_duration start_mode stop stop_duration stop_mode
transpose dir passthrough
trim duration durationi end end_frame end_pts endi start start_frame start_pts starti
unpremultiply inplace planes
unsharp aa alpha_amount alpha_msize_x alpha_msize_y ax ay ca chroma_amount chroma_msize_x chroma_msize_y cx cy la
    luma_amount luma_msize_x luma_msize_y lx ly
untile layout
uspp codec qp quality use_bframe_qp
v360 alpha_mask d_flip d_fov fin_pad fout_pad h h_flip h_fov h_offset id_fov ih_flip ih_fov in_forder in_frot in_pad
    in_stereo in_trans input interp iv_flip iv_fov out_forder out_frot out_pad out_stereo out_trans output pitch
    reset_rot roll rorder v_flip v_fov v_offset w yaw
vaguedenoiser method nsteps percent planes threshold type
varblur eof_action max_r min_r planes repeatlast shortest ts_sync_mode
vectorscope b bgopacity c colorspace e envelope f flags g graticule h hthreshold i intensity l lthreshold m mode o
    opacity t0 t1 tint0 tint1 x y
vflip
vfrdet
vibrance alternate bbal blum gbal glum intensity rbal rlum
vidstabdetect accuracy fileformat mincontrast result shakiness show stepsize tripod
vidstabtransform crop debug input interpol invert maxangle maxshift optalgo optzoom relative smoothing tripod zoom
    zoomspeed
vif eof_action repeatlast shortest ts_sync_mode
vignette a angle aspect dither eval mode x0 y0
vmafmotion stats_file
vstack inputs shortest
w3fdif deint filter mode parity
waveform b bgopacity c components d display e envelope f filter fitmode fl flags fm g graticule i input intensity m
    mirror mode o opacity r s scale t0 t1 tint0 tint1
weave first_field
xbr n
xcorrelate eof_action planes repeatlast secondary shortest ts_sync_mode
xfade duration expr offset transition
xmedian eof_action inputs percentile planes repeatlast shortest ts_sync_mode
xpsnr eof_action f repeatlast shortest stats_file ts_sync_mode
xstack fill grid inputs layout shortest
yadif deint mode parity
yaepblur p planes r radius s sigma
yuvtestsrc d duration r rate s sar size
zoneplate d duration k0 kt kt2 ku kv kx kx2 kxt kxy ky ky2 kyt precision r rate s sar size to xo yo
zoompan d fps s x y z zoom
zscale agamma c chromal chromalin cin d dither f filter h height in_range m matrix matrixin min npl out_range p
    param_a param_b pin primaries primariesin r range rangein rin s size t tin transfer transferin w width
"""
