"""Options of codecs and formats whose values are numbers, flags or names of constants; data only.

Taken from `ffmpeg -h full` of 5.1.9, 8.1.2 and 9.0.2, for the demuxers, muxers and codecs that are allowed at all.
Their type cannot hold a path. Those that change what may be opened (`enable_drefs`, `strftime_mkdir` …) are left out.
"""

OF_INPUTS = """
advanced_editlist alllayers analyzeduration apply_cropping apply_defdispwin apply_trc auto_convert bit_rate
bits_per_codeword blank_value bug cc_format change_field_order channel_order channels compute_clut compute_edt
compute_pcr cons_noisegen core_only correct_ts_overflow custom_stride data_field default_delay default_fps
discard_damaged_percentage downmix drc_scale dual_mono_mode duration_probesize dvb_substream ec eia608_extract
enable_er export_all export_xmp extern_huff extra_bits_bug extra_hw_frames f_err_detect filmgrain fix_teletext_pts
flv_full_metadata flv_ignore_prevtag flv_metadata forced_subs_only formatprobesize fpsprobesize frame_rate framerate
framethreads hca_highkey hca_lowkey hca_subkey heavy_compr hwaccel_flags ignore_chapters ignore_editlist ignore_length
ignore_loop indexmem interleaved_read is_avc keep_ass_markup kind lowqual lowres max_fps max_frame_delay max_gif_delay
max_order max_packet_size max_probe_packets max_size max_streams max_stts_delta max_ts_probe max_webp_delay
merge_alpha merge_pmt_versions min_delay missing_streams nal_length_size no_resync_search non_pcm_mode noref_gray
operating_point oppoint page part pixel_format postfilter probesize raw_packet_size real_time real_time_latency_msec
request_channel_layout request_sample_fmt resync_size rtbufsize sample_rate scan_all_pmts seek2any
seek_streams_individually segment_time_metadata skip_alpha skip_bottom skip_cursor skip_estimate_duration_from_pts
skip_frame skip_gray skip_idct skip_initial_bytes skip_loop_filter skip_top skip_unknown_pmt start_number_range
strict-displaywin sub_charenc_mode sub_text_format subfps subimage target_level thumbnail tilethreads top trans_color
ts_from_file ts_packetsize txt_chop_spaces txt_chop_top txt_default_region txt_duration txt_format txt_left
txt_opacity txt_top txt_transparent use_buggy_lpc use_mfra_for use_odml use_tfdt use_wallclock_as_timestamps
usebgcolor usetoc video_size width x264_build
"""

OF_OUTPUTS = """
8x8dct a53cc aac_coder aac_is aac_ltp aac_ms aac_pce aac_pns aac_pred aac_tns ab abr ad_conv_type aiv allow_raw_vfw
allow_skip_frames alpha_bits alphablend alternate_scan application aq-mode aq-strength arnr-max-frames arnr-maxframes
arnr-strength arnr-type arnr_max_frames arnr_strength arnr_type aspect atomic_writing aud audio_preload
audio_service_type auto-alt-ref availability_start_time_ms avcintra-class avoid_negative_ts b b-bias b-pyramid
b_qfactor b_qoffset b_sensitivity b_strategy bf bidir_refine bits_per_mb block_size bluray-compat border_mask
brd_scale break_non_keyframes bt bufsize cbr_quality center_mix_level center_mixlev ch_mode channel_coupling cheby
chroma_elim_threshold chromaoffset chunk_duration chunk_size chunks cinema_mode clev cluster_size_limit
cluster_time_limit cmp codebook_search coder comp_duration compression compression_algo compression_level compressor
context continue_one_color_thresh copyright corpus-complexity cpl_start_band cplxblur cpu-used cr_size cr_threshold
crf crf_max cues_to_front cutoff d10_channelcount dark_mask dash dash_segment_type dash_track_number data_partitioning
dc dca_adpcm dct deadline default_mode denoise-block-size denoise-noise-level dheadphone_mode dia_size dialnorm
direct-pred distance disto_alloc dither_method dither_scale dither_type dmix_mode dolbyvision dpi dpm drop-threshold
drop_frame_timecode dst_format dst_h_chr_pos dst_range dst_v_chr_pos dsth dstw dsur_mode dsurex_mode
dtshd_fallback_time dtshd_rate dtx effort empty_hdlr_name enable-1to4-partitions enable-ab-partitions
enable-angle-delta enable-cdef enable-cfl-intra enable-diff-wtd-comp enable-dist-wtd-comp enable-dual-filter
enable-filter-intra enable-flip-idtx enable-global-motion enable-interinter-wedge enable-interintra-comp
enable-interintra-wedge enable-intra-edge-filter enable-intrabc enable-masked-comp enable-obmc enable-onesided-comp
enable-paeth-intra enable-palette enable-rect-partitions enable-reduced-reference-set enable-ref-frame-mvs
enable-restoration enable-smooth-interintra enable-smooth-intra enable-tpl enable-tx64 energy_levels eph
error-resilience error-resilient error_protection error_rate even_rows_fix exact_rational exact_rice_parameters
extra_window_size fast-pskip fastfirstpass fec filter_size filter_type final_delay first_pts fixed_quality
flipped_raw_rgb flush_packets flvflags force_duplicated_matrix forced-idr format format_version frag_duration
frag_interleave frag_size frag_type fragment_index frame-parallel frame_duration frame_pts frame_size g gifflags
gifimage global_palette global_quality global_sidx gmc hielevel hls_allow_cache hls_delete_threshold
hls_fmp4_init_resend hls_init_time hls_list_size hls_playlist hls_playlist_type hls_segment_size hls_segment_type
hls_start_number_source hls_time huffman i_qfactor i_qoffset ibias iblock id3v2_version ignore_io_errors
ignore_readorder ildctcmp increment_tc index_correction individual_header_trailer initial_offset intent
internal_sample_fmt intra-refresh intra_dc_precision intra_penalty intra_vlc iods_audio_profile iods_video_profile
irreversible ism_lookahead iterative_dia_size joint_stereo kaiser_beta keyint_min la_depth lag-in-frames last_pred
ldash level lfe_mix_level lhls linear_interp live lmax lmin loopend loopfilter loopstart loro_cmixlev loro_surmixlev
lossless lpc_coeff_precision lpc_passes lpc_type ltrt_cmixlev ltrt_surmixlev luma_elim_threshold lumi_aq lumi_mask
mapping_family master_m3u8_publish_rate master_pl_publish_rate matrix_encoding max-intra-rate max_extra_cb_iterations
max_interleave_delta max_interval max_nal_size max_partition_order max_playback_rate max_prediction_order
max_soft_comp max_strips maxrate maxsection-pct mb_info mbcmp mbd mblmax mblmin mbs_per_slice mbtree mcc_version
me_method me_quality me_range memc_only mepc mepre metadata_header_padding min-gf-interval min_bpp min_comp
min_frag_duration min_hard_comp min_partition_order min_playback_rate min_prediction_order min_seg_duration min_strips
minrate minsection-pct mixed-refs mixing_level mode modular moov_size motion-est motion_est mov_gamma movflags
movie_timescale mpd_profile mpeg_quant mpegts_copyts mpegts_flags mpegts_m2ts_mode mpegts_original_network_id
mpegts_pmt_start_pid mpegts_service_id mpegts_service_type mpegts_start_pid mpegts_transport_stream_id mpv_flags msbc
multi_dim_quant muxrate mv0_threshold mxf_audio_edit_rate nal-hrd nit_period nitris_compat no_bitstream
noise-sensitivity noise_reduction non_deterministic non_linear_quant nssew numresolution obmc oggpagesize
omit_video_pes_length optimize_mono opus_delay original output_sample_bits output_ts_offset overshoot-pct p_mask
packet_loss packet_size packetsize page_duration pagesize param0 param1 pat_period pcr_period peak_block_size
peak_format peak_ppv per_frame_metadata period pes_payload_size phase_shift plays pre_dia_size precision precmp pred
prediction_order prediction_order_method preload preset profile prog prog_order ps psy psymodel qblur qcomp qdiff qm
qmax qmin qp qpa qsquish qtable quake3_compat quality quant_deadzone quant_mat quantizer_noise_shaping rc-lookahead
rc_buf_aggressivity rc_init_cplx rc_init_occupancy rc_lookahead rc_max_vbv_use rc_min_vbv_use rc_mode rc_qmod_amp
rc_qmod_freq reduced-tx-type-set refs remap_mode remap_optimizer rematrix_maxval rematrix_precision rematrix_volume
remove_at_exit resample_cutoff resampler reserve_index_space reservoir reset_timestamps reverb rf64 rle rmvol
room_type row-mt rtpflags sar sbc_delay sc_detection sc_threshold scaler scaler_sub scan_offset scplx_mask
screen-content-mode sdt_period seg_duration segment_atclocktime segment_clocktime_offset
segment_clocktime_wrap_duration segment_list_flags segment_list_size segment_list_type segment_start_number
segment_time segment_time_delta segment_wrap segment_wrap_number seq_disp_ext serial_offset sharpness signal_standard
single_file sixteen_color_thresh skip_cmp skip_empty_cb skip_exp skip_factor skip_frame_thresh skip_iods
skip_rate_check skip_threshold slev slice-max-size slice_height slice_width slicecrc slices smc-interval sop
spdif_flags speed speed_level src_format src_h_chr_pos src_range src_v_chr_pos srch srcw ssim ssim_acc
start_one_color_thresh start_time_realtime static-thresh stereo_rematrixing still-picture store_user_comments
streaming strip_number_adaptivity structured_slices subcmp subq suggested_presentation_delay surround_mix_level
surround_mixlev swr_flags sws_backends sws_dither sws_flags syncpoints tables_version target_latency tcplx_mask tier
tile-columns tile-rows tile_columns tile_height tile_rows tile_width tiles timecode_frame_start tolerance trellis tsf
tune tune-content type udu_sei umv undershoot-pct update update_period usage use-inter-dct-only use-intra-dct-only
use-intra-default-tx-only use_editlist use_stream_ids_as_track_ids use_template use_timeline use_u_alias vad
variance_aq vbr verbosity version_major version_minor video_format video_track_timescale vp8flags wavelet_depth
wavelet_type weightb weightp window_size write_apetag write_bext write_btrt write_channel_mask write_crc write_crc32
write_empty_segments write_header write_header_trailer write_id3v1 write_id3v2 write_index write_mpeg2 write_peak
write_prft write_tmcd write_xing xyb
"""

OF_BOTH = """
ac alpha_mode apply_phase_inv ar avioflags ch_layout channel_layout chroma_sample_location code_size color_primaries
color_range color_trc colorspace debug err_detect export_side_data fdebug fflags field_order flags flags2
frames_per_packet gamma height idct loop max_delay max_pixels max_samples start_number thread_type threads
ticks_per_frame
"""
