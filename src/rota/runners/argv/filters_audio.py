"""The audio filters that a graph may use, and the options of each; data only.

Taken from `ffmpeg -h filter=NAME` of 5.1.9, 8.1.2 and 9.0.2. Filters that run code, talk to devices or to a network
are left out, and with them their names: what is not here is refused. Which options name files is said in
`filters.py`.
"""

# One filter a paragraph: its name, then its options. A line that is indented goes on.
TABLE = """
aap delta mu order out_mode precision projection
abench action
acompressor attack detection knee level_in level_sc link makeup mix mode ratio release threshold
acontrast contrast
acopy
acrossfade c1 c2 curve1 curve2 d duration inputs n nb_samples ns o overlap
acrossover gain level order precision split
acrusher aa bits dc level_in level_out lfo lforange lforate mix mode samples
acue buffer cue preroll
adeclick a arorder b burst m method o overlap t threshold w window
adeclip a arorder hsize m method n o overlap t threshold w window
adecorrelate seed stages
adelay all delays
adenorm level type
aderivative
adrc attack channels release transfer
adynamicequalizer attack auto dfrequency dftype dqfactor knee makeup mode precision range ratio release slew
    tfrequency tftype threshold tqfactor
adynamicsmooth basefreq sensitivity
aecho decays delays in_gain out_gain
aemphasis level_in level_out mode type
aeval c channel_layout exprs
aevalsrc c channel_layout d duration exprs n nb_samples s sample_rate
aexciter amount blend ceil drive freq level_in level_out listen
afade c curve d duration nb_samples ns silence ss st start_sample start_time t type unity
afdelaysrc c channel_layout d delay n nb_samples r sample_rate t taps
afftdn ad adaptivity band_multiplier band_noise bm bn floor_offset fo gain_smooth gs nf nl noise_floor noise_link
    noise_reduction noise_type nr nt om output_mode residual_floor rf sample_noise sn tn tr track_noise
    track_residual
afftfilt imag overlap real win_func win_size
afifo
afir channel dry gtype ir irfmt irgain irlink irload irnorm length maxir maxp minp nbirs precision rate response
    size wet
afireqsrc b bands g gains h i interp n nb_samples p phase preset r sample_rate t taps
afirsrc f frequency m magnitude n nb_samples p phase r sample_rate t taps w win_func
aformat channel_layouts cl f r sample_fmts sample_rates
afreqshift level order shift
afwtdn adaptive levels percent profile samples sigma softness wavet
agate attack detection knee level_in level_sc link makeup mode range ratio release threshold
aiir channel dry e f format gains k mix n normalize p poles precision process r rate response size wet z zeros
aintegral
ainterleave duration n nb_inputs
alatency
alimiter asc asc_level attack latency level level_in level_out limit release
allpass a c channels f frequency m mix n normalize o order precision r t transform w width width_type
aloop loop size start time
amerge inputs layout_mode
ametadata direct expr file function key mode value
amix dropout_transition duration inputs normalize weights
amovie dec_threads discontinuity f filename format_name format_opts loop s seek_point si sp stream_index streams
amultiply
anequalizer colors curves fscale mgain params size
anlmdn m o output p patch r research s smooth strength
anlmf eps leakage mu order out_mode precision
anlms eps leakage mu order out_mode precision
anoisesrc a amplitude c color colour d density duration n nb_samples r s sample_rate seed
anull
anullsink
anullsrc channel_layout cl d duration n nb_samples r sample_rate
apad packet_size pad_dur pad_len whole_dur whole_len
aperms mode seed
aphasemeter a angle bc d duration gc mpc phasing r rate rc s size t tolerance video
aphaser decay delay in_gain out_gain speed type
aphaseshift level order shift
apsnr
apsyclip adaptive clip diff iterations level level_in level_out
apulsator amount bpm hz level_in level_out mode ms offset_l offset_r timing width
arealtime limit speed
aresample async center_mix_level cheby clev comp_duration cutoff dither_method dither_scale exact_rational
    filter_size filter_type first_pts flags ich ichl icl in_channel_count in_channel_layout in_chlayout
    in_sample_fmt in_sample_rate internal_sample_fmt isf isr kaiser_beta lfe_mix_level linear_interp matrix_encoding
    max_soft_comp min_comp min_hard_comp och ochl ocl osf osr out_channel_count out_channel_layout out_chlayout
    out_sample_fmt out_sample_rate output_sample_bits phase_shift precision rematrix_maxval rematrix_volume
    resample_cutoff resampler rmvol sample_rate slev surround_mix_level swr_flags tsf uch uchl used_channel_count
    used_chlayout
areverse
arls delta lambda order out_mode precision
arnndn m mix model
asdr
asegment samples timestamps
aselect e expr n outputs
asendcmd c commands f filename
asetnsamples n nb_out_samples p pad
asetpts expr
asetrate r sample_rate
asettb expr tb
ashowinfo
asidedata mode type
asisdr
asoftclip output oversample param threshold type
aspectralstats measure overlap win_func win_size
asplit outputs
astats length measure_overall measure_perchannel metadata reset
astreamselect inputs map
asubboost boost channels cutoff decay delay dry feedback slope wet
asubcut cutoff level order
asupercut cutoff level order
asuperpass centerf level order qfactor
asuperstop centerf level order qfactor
atempo tempo
atilt freq level order slope width
atrim duration durationi end end_pts end_sample endi start start_pts start_sample starti
axcorrelate algo size
bandpass a b blocksize c channels csg f frequency m mix n normalize precision r t transform w width width_type
bandreject a b blocksize c channels f frequency m mix n normalize precision r t transform w width width_type
bass a b blocksize c channels f frequency g gain m mix n normalize p poles precision r t transform w width
    width_type
biquad a a0 a1 a2 b b0 b1 b2 blocksize c channels m mix n normalize precision r transform
bs2b fcut feed profile
channelmap channel_layout map
channelsplit channel_layout channels
chorus decays delays depths in_gain out_gain speeds
compand attacks decays delay gain points soft-knee volume
compensationdelay cm dry m mm temp wet
concat a n unsafe v
crossfeed block_size level_in level_out range slope strength
crystalizer c i
dcshift limitergain shift
deesser f i m s
dialoguenhance enhance original voice
drmeter length
dynaudnorm altboundary b c channels compress correctdc coupling curve f framelen g gausssize h m maxgain n o overlap
    p peak r s t targetrms threshold v
earwax
ebur128 dualmono framelog gauge integrated lra_high lra_low metadata meter panlaw peak range sample_peak scale size
    target true_peak video
equalizer a b blocksize c channels f frequency g gain m mix n normalize precision r t transform w width width_type
extrastereo c m
firequalizer accuracy delay dumpfile dumpscale fft2 fixed gain gain_entry min_phase multi scale wfunc zero_phase
flanger delay depth interp phase regen shape speed width
flite list_voices n nb_samples text textfile v voice
haas left_balance left_delay left_gain left_phase level_in level_out middle_phase middle_source right_balance
    right_delay right_gain right_phase side_gain
hdcd analyze_mode bits_per_sample cdt_ms disable_autoconvert force_pe process_stereo
headphone gain hrir lfe map size type
highpass a b blocksize c channels f frequency m mix n normalize p poles precision r t transform w width width_type
highshelf a b blocksize c channels f frequency g gain m mix n normalize p poles precision r t transform w width
    width_type
hilbert n nb_samples r sample_rate t taps w win_func
join channel_layout inputs map
loudnorm I LRA TP dual_mono i linear lra measured_I measured_LRA measured_TP measured_i measured_lra measured_thresh
    measured_tp offset print_format stats_file tp
lowpass a b blocksize c channels f frequency m mix n normalize p poles precision r t transform w width width_type
lowshelf a b blocksize c channels f frequency g gain m mix n normalize p poles precision r t transform w width
    width_type
mcompand args
movie dec_threads discontinuity f filename format_name format_opts loop s seek_point si sp stream_index streams
pan args
replaygain track_gain track_peak
rubberband channels detector formant phase pitch pitchq smoothing tempo transients window
sidechaincompress attack detection knee level_in level_sc link makeup mix mode ratio release threshold
sidechaingate attack detection knee level_in level_sc link makeup mode range ratio release threshold
silencedetect d duration m mono n noise
silenceremove detection start_duration start_mode start_periods start_silence start_threshold stop_duration
    stop_mode stop_periods stop_silence stop_threshold timestamp window
sinc att beta hp hptaps lp lptaps n nb_samples phase r round sample_rate
sine b beep_factor d duration f frequency r sample_rate samples_per_frame
sofalizer anglestep elevation framesize gain interpolate lfegain minphase normalize radius radstep rotation sofa
    speakers type
speechnorm c channels compression e expansion f fall h i invert l link m p peak r raise rms t threshold
stereotools balance_in balance_out base bmode_in bmode_out delay level_in level_out mlev mode mpan mutel muter phase
    phasel phaser sbal sclevel slev softclip
stereowiden crossfeed delay drymix feedback
streamselect inputs map
superequalizer 10b 11b 12b 13b 14b 15b 16b 17b 18b 1b 2b 3b 4b 5b 6b 7b 8b 9b
surround allx ally angle bc_in bc_out bcx bcy bl_in bl_out blx bly br_in br_out brx bry chl_in chl_out fc_in fc_out
    fcx fcy fl_in fl_out flx fly focus fr_in fr_out frx fry level_in level_out lfe lfe_high lfe_in lfe_low lfe_mode
    lfe_out overlap sl_in sl_out slx sly smooth sr_in sr_out srx sry win_func win_size
tiltshelf a b blocksize c channels f frequency g gain m mix n normalize p poles precision r t transform w width
    width_type
treble a b blocksize c channels f frequency g gain m mix n normalize p poles precision r t transform w width
    width_type
tremolo d f
vibrato d f
virtualbass cutoff strength
volume eval precision replaygain replaygain_noclip replaygain_preamp volume
volumedetect
"""
