"""The flags of both engines' servers, as their own argument parsers declare them. Generated: do not edit.

Written by tests/engines/dump_flags.py from vLLM 0.32.0 (vllm.entrypoints.launchers.cli_args.make_arg_parser) and
SGLang 0.5.23 (sglang.srt.server_args.ServerArgs.add_cli_args). An abbreviation is unambiguous only against every
flag of a release, so all of them are here.

One flag a line: how many values it takes (a number, or argparse's "?", "*", "+"), then its spellings. The first is the
name that drainagent.engine_argv knows it by. A spelling that starts with --no- next to one without turns it off.
"""

from __future__ import annotations

VLLM_RELEASE = "0.32.0"
SGLANG_RELEASE = "0.5.23"

VLLM_FLAGS = """\
1 --additional-config
0 --aggregate-engine-logging
1 --all2all-backend
0 --allow-credentials --no-allow-credentials
0 --allow-deprecated-quantization --no-allow-deprecated-quantization
1 --allowed-headers
1 --allowed-local-media-path
+ --allowed-media-domains
1 --allowed-methods
1 --allowed-origins
1 --anthropic-disabled-thinking-effort
+ --api-key
1 --api-server-count -asc
0 --async-scheduling --no-async-scheduling
1 --attention-backend
1 --attention-config -ac
1 --aux-output-config
1 --block-size
1 --chat-template
1 --chat-template-content-format
1 --code-revision
1 --cohere-format
0 --cohere-is-reasoning-model --no-cohere-is-reasoning-model
+ --collect-detailed-traces
1 --compilation-config -cc
1 --config
1 --config-format
1 --convert
1 --cp-kv-cache-interleave-size
1 --cpu-distributed-timeout-seconds
1 --cpu-offload-gb
+ --cpu-offload-params
+ --cudagraph-capture-sizes
0 --cudagraph-metrics --no-cudagraph-metrics
1 --custom-histogram-buckets
1 --data-parallel-address -dpa
1 --data-parallel-backend -dpb
0 --data-parallel-external-lb --no-data-parallel-external-lb -dpe
0 --data-parallel-hybrid-lb --no-data-parallel-hybrid-lb -dph
0 --data-parallel-multi-port-external-lb -dpm
1 --data-parallel-rank -dpn
1 --data-parallel-rpc-port -dpp
1 --data-parallel-size -dp
1 --data-parallel-size-local -dpl
1 --data-parallel-start-rank -dpr
1 --data-parallel-supervisor-port
1 --dbo-decode-token-threshold
1 --dbo-prefill-token-threshold
1 --dcp-comm-backend
1 --dcp-kv-cache-interleave-size
0 --dcp-q-replicate --no-dcp-q-replicate
1 --decode-context-parallel-size -dcp
1 --default-chat-template-kwargs
1 --default-mm-loras
1 --device-ids
1 --diffusion-config -dc
1 --disable-access-log-for-endpoints
0 --disable-cascade-attn --no-disable-cascade-attn
0 --disable-chunked-mm-input --no-disable-chunked-mm-input
0 --disable-custom-all-reduce --no-disable-custom-all-reduce
0 --disable-fastapi-docs --no-disable-fastapi-docs
0 --disable-hybrid-kv-cache-manager --no-disable-hybrid-kv-cache-manager
0 --disable-log-stats
0 --disable-nccl-for-dp-synchronization --no-disable-nccl-for-dp-synchronization
0 --disable-sliding-window --no-disable-sliding-window
0 --disable-uvicorn-access-log --no-disable-uvicorn-access-log
1 --distributed-executor-backend
1 --distributed-timeout-seconds
1 --download-dir
1 --dp-supervisor-probe-failure-threshold
1 --dp-supervisor-probe-interval-s
1 --dp-supervisor-probe-timeout-s
1 --dp-sync-interval
1 --dtype
1 --ec-manager-config
1 --ec-transfer-config
1 --elastic-ep-max-dp-size
0 --enable-auto-tool-choice --no-enable-auto-tool-choice
0 --enable-batch-sharded-sampling --no-enable-batch-sharded-sampling
0 --enable-chunked-prefill --no-enable-chunked-prefill
0 --enable-cumem-allocator --no-enable-cumem-allocator
0 --enable-dbo --no-enable-dbo
0 --enable-elastic-ep --no-enable-elastic-ep
0 --enable-ep-weight-filter --no-enable-ep-weight-filter
0 --enable-eplb --no-enable-eplb
0 --enable-expert-parallel --no-enable-expert-parallel -ep
0 --enable-fault-tolerance --no-enable-fault-tolerance
0 --enable-flash-late-interaction --no-enable-flash-late-interaction
0 --enable-flashinfer-autotune --no-enable-flashinfer-autotune
0 --enable-force-include-usage --no-enable-force-include-usage
0 --enable-hc-sp --no-enable-hc-sp
0 --enable-layerwise-nvtx-tracing --no-enable-layerwise-nvtx-tracing
0 --enable-log-deltas --no-enable-log-deltas
0 --enable-log-outputs --no-enable-log-outputs
0 --enable-log-requests --no-enable-log-requests
0 --enable-logging-iteration-details --no-enable-logging-iteration-details
0 --enable-lora --no-enable-lora
0 --enable-mamba-cache-stochastic-rounding --no-enable-mamba-cache-stochastic-rounding
0 --enable-mamba-shared-prefix-checkpoint --no-enable-mamba-shared-prefix-checkpoint
0 --enable-mfu-metrics --no-enable-mfu-metrics
0 --enable-mixed-moe-lora-format --no-enable-mixed-moe-lora-format
0 --enable-mm-embeds --no-enable-mm-embeds
0 --enable-moe-shared-loras --no-enable-moe-shared-loras
0 --enable-nccl-comm-suspend --no-enable-nccl-comm-suspend
0 --enable-offline-docs --no-enable-offline-docs
0 --enable-per-request-metrics --no-enable-per-request-metrics
0 --enable-prefix-caching --no-enable-prefix-caching
0 --enable-prompt-embeds --no-enable-prompt-embeds
0 --enable-prompt-tokens-details --no-enable-prompt-tokens-details
0 --enable-request-id-headers --no-enable-request-id-headers
0 --enable-return-routed-experts --no-enable-return-routed-experts
0 --enable-scale-out --no-enable-scale-out
0 --enable-server-load-tracking --no-enable-server-load-tracking
0 --enable-shm-tensor-arena --no-enable-shm-tensor-arena
0 --enable-sleep-mode --no-enable-sleep-mode
0 --enable-ssl-refresh --no-enable-ssl-refresh
0 --enable-tokenizer-info-endpoint --no-enable-tokenizer-info-endpoint
0 --enable-tower-connector-lora --no-enable-tower-connector-lora
0 --enable-trace-replay --no-enable-trace-replay
0 --enforce-eager --no-enforce-eager
1 --engram-config
1 --eplb-config
0 --exclude-tools-when-tool-choice-none --no-exclude-tools-when-tool-choice-none
1 --expert-placement-strategy
0 --fail-on-environ-validation --no-fail-on-environ-validation
1 --fault-tolerance-config
1 --fingerprint-mode
1 --fingerprint-value
0 --fully-sharded-loras --no-fully-sharded-loras
1 --gdn-prefill-backend
1 --generation-config
1 --gpu-memory-utilization --device-memory-utilization
0 --grpc
1 --grpc-port
1 --h11-max-header-count
1 --h11-max-incomplete-event-size
0 --headless
0 --help -h
1 --hf-config-path
1 --hf-overrides
? --hf-token
1 --host
+ --ignore-patterns
0 --interleave-mm-strings --no-interleave-mm-strings
1 --io-processor-plugin
1 --ir-op-priority
1 --jit-monitor-mode
0 --jit-monitor-verbose --no-jit-monitor-verbose
1 --kda-decode-backend
1 --kda-prefill-backend
1 --kernel-config
1 --kv-cache-dtype
+ --kv-cache-dtype-skip-layers
1 --kv-cache-memory-bytes
0 --kv-cache-metrics --no-kv-cache-metrics
1 --kv-cache-metrics-sample
1 --kv-events-config
1 --kv-offloading-backend
1 --kv-offloading-size
0 --kv-sharing-fast-prefill --no-kv-sharing-fast-prefill
1 --kv-transfer-config
0 --language-model-only --no-language-model-only
1 --limit-mm-per-prompt
1 --linear-backend
1 --load-format
1 --log-config-file
0 --log-error-stack --no-log-error-stack
1 --log-level
1 --logging-config
+ --logits-processors
1 --logprobs-mode
1 --long-prefill-token-threshold
0 --long-prefill-token-threshold-adaptive --no-long-prefill-token-threshold-adaptive
1 --lora-dtype
+ --lora-modules
+ --lora-target-modules
1 --mamba-backend
1 --mamba-block-size
1 --mamba-cache-dtype
1 --mamba-cache-mode
1 --mamba-cache-philox-rounds
1 --mamba-ssm-cache-dtype
1 --mamba-ssu-algorithm
1 --master-addr
1 --master-port
1 --max-cpu-loras
1 --max-cudagraph-capture-size
1 --max-log-len
1 --max-logprobs
1 --max-lora-cls-labels
1 --max-lora-rank
1 --max-loras
1 --max-model-len
1 --max-num-active-seqs
1 --max-num-batched-tokens
1 --max-num-queued-reqs
1 --max-num-queued-tokens
1 --max-num-scheduled-tokens
1 --max-num-seqs
1 --max-parallel-loading-workers
1 --media-io-kwargs
1 --middleware
0 --mm-device-do-normalize --no-mm-device-do-normalize
1 --mm-encoder-attn-backend
1 --mm-encoder-attn-dtype
1 --mm-encoder-fp8-scale-path
1 --mm-encoder-fp8-scale-save-margin
1 --mm-encoder-fp8-scale-save-path
0 --mm-encoder-only --no-mm-encoder-only
1 --mm-encoder-tp-mode
1 --mm-hasher-algorithm
1 --mm-ipc-gpu-memory-gb
1 --mm-processor-cache-gb
1 --mm-processor-cache-type
1 --mm-processor-device
1 --mm-processor-kwargs
1 --mm-shm-cache-max-object-size-mb
1 --mm-tensor-ipc
1 --model
1 --model-class-overrides
1 --model-impl
1 --model-loader-extra-config
1 --moe-backend
1 --nnodes -n
1 --node-rank -r
1 --num-gpu-blocks-override
0 --numa-bind --no-numa-bind
+ --numa-bind-cpus
+ --numa-bind-nodes
1 --offload-backend
1 --offload-group-size
1 --offload-num-in-group
+ --offload-params
1 --offload-prefetch-step
1 --optimization-level
1 --otlp-traces-endpoint
1 --override-generation-config
1 --per-request-spec-decode-metrics
1 --performance-mode
1 --pipeline-parallel-size -pp
1 --pooler-config
1 --port
1 --prefill-context-parallel-size -pcp
1 --prefill-schedule-interval
1 --prefix-cache-retention-interval
1 --prefix-caching-hash-algo
1 --prefix-match-unit
1 --profiler-config
1 --pt-load-map-location
1 --quantization -q
1 --quantization-config
0 --ray-workers-use-nsight --no-ray-workers-use-nsight
1 --reasoning-config
1 --reasoning-parser
1 --reasoning-parser-plugin
1 --renderer-num-workers
1 --replayssm-buffer-len
1 --response-role
0 --return-sampling-mask --no-return-sampling-mask
0 --return-tokens-as-token-ids --no-return-tokens-as-token-ids
1 --revision
1 --root-path
1 --runner
1 --safetensors-load-strategy
1 --safetensors-prefetch-block-size
1 --safetensors-prefetch-num-threads
1 --scheduler-cls
0 --scheduler-reserve-full-isl --no-scheduler-reserve-full-isl
1 --scheduling-policy
1 --seed
+ --served-model-name
1 --show-hidden-metrics-for-version
1 --shutdown-timeout
0 --skip-mm-profiling --no-skip-mm-profiling
0 --skip-tokenizer-init --no-skip-tokenizer-init
0 --sleep-mode-offload-cudagraph --no-sleep-mode-offload-cudagraph
+ --sleep-preserve-parameter-names
1 --sparse-indexer-topk-backend
1 --spec-method
1 --spec-model
1 --spec-tokens
0 --specialize-active-lora --no-specialize-active-lora
1 --speculative-config -sc
1 --sse-keep-alive-interval
1 --ssl-ca-certs
1 --ssl-cert-reqs
1 --ssl-certfile
1 --ssl-ciphers
1 --ssl-keyfile
1 --stream-interval
1 --structured-outputs-config
0 --swa-bounded-replay --no-swa-bounded-replay
1 --tensor-parallel-size -tp
1 --tokenizer
1 --tokenizer-mode
1 --tokenizer-revision
0 --tokens-only --no-tokens-only
1 --tool-call-parser
1 --tool-parser-plugin
1 --tool-server
1 --tool-strict-level
0 --trust-remote-code --no-trust-remote-code
0 --trust-request-chat-template --no-trust-request-chat-template
0 --trust-request-mm-kwargs --no-trust-request-mm-kwargs
1 --ubatch-size
1 --uds
0 --use-fp64-gumbel --no-use-fp64-gumbel
0 --use-replayssm --no-use-replayssm
0 --use-tqdm-on-load --no-use-tqdm-on-load
1 --uvicorn-log-level
1 --video-pruning-method
1 --video-pruning-rate
1 --watermark
1 --watermark-config
1 --weight-transfer-config
1 --worker-cls
1 --worker-extension-cls
"""

SGLANG_FLAGS = """\
0 --abort-on-priority-when-disabled
1 --admin-api-key
0 --allow-auto-truncate
+ --allowed-media-domains
1 --api-key
1 --asr-max-buffer-seconds
1 --asr-max-concurrent-sessions
1 --attention-backend
1 --attn-cp-size --attention-context-parallel-size
1 --attn-dp-size --attention-data-parallel-size
1 --base-gpu-id
1 --batch-notify-size
1 --bf16-gemm-backend
1 --boundary-reduction
+ --bucket-e2e-request-latency
+ --bucket-inter-token-latency
+ --bucket-time-to-first-token
1 --c128-page-size
1 --chat-template
0 --checkpoint-engine-wait-weights-before-ready
1 --chunked-prefill-size
1 --completion-template
1 --config
0 --constrained-json-disable-any-whitespace
1 --constrained-json-max-whitespace-cnt
1 --constrained-json-whitespace-pattern
1 --context-length
1 --cp-strategy
1 --cpu-offload-gb
1 --crash-dump-folder
1 --cuda-graph-backend-decode
1 --cuda-graph-backend-prefill
+ --cuda-graph-bs-decode
+ --cuda-graph-bs-prefill
1 --cuda-graph-config
1 --cuda-graph-max-bs-decode
1 --cuda-graph-max-bs-prefill
1 --cuda-graph-max-seq-len-prefill
1 --cuda-graph-prefill-max-context --context-bucket
* --custom-weight-loader
1 --dcp-comm-backend
0 --dcp-replicate-q-proj --no-dcp-replicate-q-proj
1 --dcp-size --decode-context-parallel-size
0 --debug-cuda-graph
1 --debug-tensor-dump-input-file
+ --debug-tensor-dump-layers
1 --debug-tensor-dump-output-folder
1 --decode-attention-backend
1 --decode-log-interval
1 --decoupled-spec-bind-endpoint
1 --decoupled-spec-connect-endpoints
1 --decoupled-spec-rank
1 --decoupled-spec-role
1 --decrypted-config-file
1 --decrypted-draft-config-file
1 --deepep-config
1 --deepep-dispatcher-output-dtype
1 --deepep-mode
1 --deepep-v2-mode
1 --default-chat-template-kwargs
1 --default-priority-value
0 --delete-ckpt-after-loading
1 --detokenizer-worker-num
1 --device
0 --disable-aiter-allreduce-fusion-in-decode
0 --disable-aiter-allreduce-fusion-in-prefill
0 --disable-attn-tp-gather
0 --disable-chunked-prefix-cache
0 --disable-cuda-graph
0 --disable-cuda-graph-padding
0 --disable-custom-all-reduce
0 --disable-decode-cuda-graph
0 --disable-fast-image-processor
0 --disable-flashinfer-autotune
0 --disable-flashinfer-cutlass-moe-fp4-allgather
0 --disable-hybrid-swa-memory
0 --disable-outlines-disk-cache
0 --disable-overlap-schedule
0 --disable-prefill-cuda-graph
0 --disable-priority-preemption
0 --disable-radix-cache
0 --disable-shared-experts-fusion
0 --disable-tokenizer-batch-decode
1 --disaggregation-bootstrap-port
1 --disaggregation-decode-allocation-policy
0 --disaggregation-decode-enable-offload-kvcache
0 --disaggregation-decode-enable-radix-cache
1 --disaggregation-decode-extra-slots
1 --disaggregation-decode-host-receive-threshold
1 --disaggregation-decode-polling-interval
1 --disaggregation-decode-retraction-backup
0 --disaggregation-enable-kv-checksum
1 --disaggregation-ib-device
1 --disaggregation-mode
1 --disaggregation-transfer-backend
1 --dist-init-addr --nccl-init-addr
1 --dist-timeout
1 --dllm-algorithm
1 --dllm-algorithm-config
0 --dllm-fdfo --no-dllm-fdfo
1 --download-dir
1 --dp-size --data-parallel-size
1 --dsa-decode-backend
1 --dsa-paged-mqa-logits-backend
1 --dsa-prefill-backend
1 --dsa-topk-backend
1 --dsa-triton-union
1 --dsv4-attn-backend
1 --dsv4-prefill-backend
1 --dtype
1 --dwdp-size
1 --dynamic-batch-tokenizer-batch-size
1 --dynamic-batch-tokenizer-batch-timeout
1 --elastic-ep-backend
1 --elastic-ep-initial-size
1 --elastic-ep-join-mode
1 --elastic-ep-join-rank-offset
1 --elastic-ep-scale-timeout
0 --enable-adaptive-dispatch-to-encoder
0 --enable-aiter-allreduce-fusion
0 --enable-amd-monokernel
0 --enable-attn-tp-input-scattered
0 --enable-broadcast-mm-inputs-process
0 --enable-cache-report
0 --enable-cp-decode-attn-tp
0 --enable-cudagraph-gc
0 --enable-custom-logit-processor
0 --enable-decoder-swa-bounded-replay --no-enable-decoder-swa-bounded-replay
0 --enable-deepseek-v4-fp4-indexer
0 --enable-dense-mlp-attn-tp
0 --enable-deterministic-inference
0 --enable-dp-attention
0 --enable-dp-attention-local-control-broadcast
0 --enable-dp-lm-head
0 --enable-draft-weights-cpu-backup
0 --enable-dsa-cache-layer-split
0 --enable-dsa-fused-indexer --no-enable-dsa-fused-indexer
0 --enable-dynamic-batch-tokenizer
0 --enable-dynamic-chunking
0 --enable-elastic-expert-backup
0 --enable-encoder-swa-bounded-replay
0 --enable-eplb
0 --enable-flashinfer-allreduce-fusion
0 --enable-flexkv
0 --enable-forward-pass-metrics
0 --enable-fp32-lm-head
0 --enable-fused-moe-sum-all-reduce
0 --enable-fused-qk-norm-rope --no-enable-fused-qk-norm-rope
0 --enable-hierarchical-cache --enable-hicache
0 --enable-hisparse
0 --enable-http-worker-reuseport
0 --enable-http2
0 --enable-int8-mamba-checkpoint
0 --enable-kv-cache-sharding
0 --enable-layernorm-sp
0 --enable-layerwise-nvtx-marker
0 --enable-lean-attention
0 --enable-linear-replayssm
0 --enable-linear-replayssm-spec
0 --enable-linker-mla-dedup
0 --enable-lmcache
0 --enable-lora
0 --enable-lora-overlap-loading
0 --enable-mamba-cache-stochastic-rounding
0 --enable-megamoe-for-layernorm-sp
0 --enable-memory-saver
0 --enable-metrics
0 --enable-metrics-for-all-schedulers
0 --enable-mfu-metrics
0 --enable-mis
0 --enable-mixed-chunk
0 --enable-mm-global-cache
0 --enable-mscclpp
0 --enable-multi-layer-eagle
0 --enable-multimodal
0 --enable-nccl-nvls
0 --enable-nvidia-megakernel
0 --enable-p2p-check
0 --enable-page-major-kv-layout
0 --enable-paged-experts
0 --enable-pd-role-switch
0 --enable-pdmux
0 --enable-precise-embedding-interpolation
0 --enable-prefill-cp
0 --enable-prefill-delayer
0 --enable-prefix-mm-cache
0 --enable-priority-scheduling
0 --enable-profile-cuda-graph
0 --enable-quant-communications
0 --enable-request-time-stats-logging
0 --enable-response-store
0 --enable-return-aux-hidden-states
0 --enable-return-hidden-states
0 --enable-return-indexer-topk
0 --enable-return-routed-experts
0 --enable-scattered-sconv
0 --enable-session-radix-cache
0 --enable-shared-experts-attn-tp
0 --enable-single-batch-overlap
0 --enable-ssl-refresh
0 --enable-streaming-session
0 --enable-strict-thinking
0 --enable-symm-mem
0 --enable-tf32-matmul --no-enable-tf32-matmul
0 --enable-tokenizer-batch-encode
0 --enable-torch-compile
0 --enable-torch-compile-debug-mode
0 --enable-torch-symm-mem
0 --enable-tp-lm-head-all-to-all --no-enable-tp-lm-head-all-to-all
0 --enable-trace
0 --enable-two-batch-overlap
0 --enable-unified-cache-external-linker
0 --enable-unified-memory
0 --enable-w4a4-mxfp4-megamoe
0 --enable-waterfill
0 --enable-watermark
0 --enable-weights-cpu-backup
1 --encoder-bootstrap-port
0 --encoder-only
+ --encoder-register-urls
1 --encoder-transfer-backend
+ --encoder-urls
0 --enforce-disable-flashinfer-allreduce-fusion
0 --enforce-shared-experts-fusion
1 --engine-info-bootstrap-port
1 --ep-dispatch-algorithm
1 --ep-num-redundant-experts
1 --ep-size --expert-parallel-size --ep
1 --eplb-algorithm
1 --eplb-min-rebalancing-utilization-threshold
1 --eplb-rebalance-layers-per-chunk
1 --eplb-rebalance-num-iterations
1 --expert-balancedness-report-mode
1 --expert-distribution-recorder-buffer-size
1 --expert-distribution-recorder-mode
0 --experts-shared-outer-loras --no-experts-shared-outer-loras
0 --export-metrics-to-file
1 --export-metrics-to-file-dir
1 --extra-metric-labels
1 --fastapi-root-path
1 --file-storage-path
1 --flashinfer-a2a-dispatch-type
1 --flashinfer-allreduce-fusion-backend
+ --flashinfer-autotune-skip-ops
0 --flashinfer-mla-disable-ragged
1 --flashinfer-mxfp4-moe-precision
1 --flexkv-config-file
1 --forward-hooks
1 --forward-pass-metrics-ipc-name
1 --forward-pass-metrics-worker-id
1 --fp4-gemm-backend
1 --fp8-gemm-backend
1 --fuseep-mode
1 --gated-launch-port
+ --gc-threshold
1 --gc-warning-threshold-secs
+ --generation-tokens-buckets
1 --gpu-id-step
1 --grammar-backend
0 --grpc-mode
1 --grpc-port
1 --grpc-response-timeout-secs
0 --help -h
1 --hf-chat-template-name
1 --hicache-host-memory-fraction
1 --hicache-host-memory-mode
1 --hicache-io-backend
1 --hicache-mem-layout
1 --hicache-ratio
1 --hicache-size
1 --hicache-storage-backend
1 --hicache-storage-backend-extra-config
1 --hicache-storage-prefetch-policy
1 --hicache-storage-prefetch-retry-max-attempts
1 --hicache-storage-prefetch-retry-poll-interval
1 --hicache-write-policy
1 --hisparse-config --hierarchical-sparse-attention-extra-config
1 --host
1 --http2-initial-connection-window-size
1 --http2-max-concurrent-streams
1 --image-processor-backend
0 --incremental-streaming-output
1 --init-expert-location
1 --int8-mamba-ckpt-size
0 --is-embedding
1 --json-model-override-args
1 --kt-cpuinfer
1 --kt-max-deferred-experts-per-token
1 --kt-method
1 --kt-num-gpu-experts
1 --kt-threadpool-count
1 --kt-weight-path
1 --kv-cache-dtype
1 --kv-canary
1 --kv-canary-real-data
1 --kv-canary-sweep-interval
1 --kv-events-config
0 --language-model-only
0 --language-only
1 --limit-mm-data-per-request
1 --linear-attn-backend
1 --linear-attn-decode-backend
1 --linear-attn-prefill-backend
1 --linear-attn-verify-backend
1 --linear-replayssm-cache-len
1 --lmcache-config-file
1 --load-balance-method
1 --load-format
1 --load-publish-endpoint
1 --load-snapshot-publish-interval
1 --log-level
1 --log-level-http
0 --log-requests
1 --log-requests-format
1 --log-requests-level
+ --log-requests-target
1 --lora-backend
1 --lora-drain-wait-threshold
1 --lora-eviction-policy
* --lora-paths
0 --lora-strict-loading --no-lora-strict-loading
* --lora-target-modules
0 --lora-use-virtual-experts
1 --mamba-backend
1 --mamba-cache-philox-rounds
1 --mamba-full-memory-ratio
1 --mamba-max-states-per-path
1 --mamba-radix-cache-strategy
1 --mamba-ssm-dtype
1 --mamba-track-interval
1 --max-ep-size
1 --max-loaded-loras
1 --max-lora-chunk-size
1 --max-lora-rank
1 --max-loras-per-batch
1 --max-mamba-cache-size
1 --max-prefill-tokens
1 --max-queued-requests
1 --max-running-requests
1 --max-total-tokens
1 --media-url-max-file-size-mb
1 --mem-fraction-static
1 --min-free-slots-delay
0 --mlx-enable-sampling
1 --mm-attention-backend
0 --mm-enable-dp-encoder --no-mm-enable-dp-encoder
1 --mm-feature-transport
1 --mm-global-cache-backend
1 --mm-io-worker-num
1 --mm-preprocess-cache-size-mb
1 --mm-process-config
1 --mm-processor-worker-num
? --model-checksum
1 --model-config-parser
1 --model-impl
1 --model-loader-extra-config
1 --model-path --model
1 --modelexpress-config
1 --modelopt-checkpoint-restore-path
1 --modelopt-checkpoint-save-path
1 --modelopt-export-path
1 --modelopt-quant
1 --moe-a2a-backend
1 --moe-dense-tp-size
1 --moe-dp-size --moe-data-parallel-size
1 --moe-runner-backend
1 --monokernel-backend
1 --mooncake-ib-device
1 --msprobe-dump-config
1 --nccl-port
1 --nnodes
1 --node-rank
1 --num-continuous-decode-steps
1 --num-reserved-decode-tokens
+ --numa-node
1 --offload-group-size
1 --offload-mode
1 --offload-num-in-group
1 --offload-prefetch-step
1 --optimistic-prefill-attempts
1 --otlp-service-name
1 --otlp-traces-endpoint
1 --page-size
1 --paged-experts-num-resident
1 --pdmux-config-path
1 --ple-offload-backend
1 --ple-offload-dir
0 --ple-offload-embedding --no-ple-offload-embedding
1 --port
1 --pp-async-batch-depth
1 --pp-max-micro-batch-size
1 --pp-size --pipeline-parallel-size
0 --pre-warm-nccl
1 --preferred-sampling-params
1 --prefill-attention-backend
1 --prefill-decode-interval
1 --prefill-decode-interval-min-bs
+ --prefill-delayer-forward-passes-buckets
1 --prefill-delayer-max-delay-ms
1 --prefill-delayer-max-delay-passes
1 --prefill-delayer-queue-min-ratio
1 --prefill-delayer-token-usage-low-watermark
+ --prefill-delayer-wait-seconds-buckets
1 --prefill-kv-cache-dequant-dtype
1 --prefill-max-requests
0 --prefill-only-disable-kv-cache
1 --priority-scheduling-preemption-threshold
+ --prompt-tokens-buckets
1 --qsa-indexer-dtype
1 --quantization
1 --quantization-param-path
0 --quantize-and-serve
1 --radix-cache-backend
1 --radix-eviction-policy
1 --radix-eviction-policy-config
1 --random-seed
1 --reasoning-parser
1 --remote-instance-weight-loader-backend
1 --remote-instance-weight-loader-seed-instance-ip
1 --remote-instance-weight-loader-seed-instance-service-port
1 --remote-instance-weight-loader-send-weights-group-ports
0 --remote-instance-weight-loader-start-seed-via-transfer-engine
1 --retraction-policy
+ --return-aux-hidden-state-layer-ids
1 --return-hidden-states-mode
0 --return-input-ids
0 --return-output-ids
1 --revision
1 --rl-on-policy-target
1 --rl-quant-profile
1 --sampling-backend
1 --sampling-defaults
1 --sampling-mask-max-tokens
1 --schedule-conservativeness
0 --schedule-low-priority-values-first
1 --schedule-policy
1 --scheduler-recv-interval
1 --served-model-name
1 --shared-experts-tp-size
0 --show-time-cost
1 --sidecar
1 --sidecar-args
0 --skip-server-warmup
0 --skip-tokenizer-init
0 --sleep-on-idle
1 --sm-group-num
0 --smg-grpc-mode
1 --smg-http-sidecar-port --grpc-http-sidecar-port
1 --soft-watchdog-timeout
1 --spec-trace-dir
1 --speculative-accept-threshold-acc
1 --speculative-accept-threshold-single
0 --speculative-adaptive
1 --speculative-adaptive-config
1 --speculative-algorithm
1 --speculative-attention-mode
1 --speculative-dflash-block-size
1 --speculative-domino-candidate-pool-size
1 --speculative-draft-attention-backend
1 --speculative-draft-kv-cache-dtype
1 --speculative-draft-load-format
1 --speculative-draft-model-path --speculative-draft-model
1 --speculative-draft-model-quantization
1 --speculative-draft-model-revision
1 --speculative-draft-sink-size
1 --speculative-draft-window-size
1 --speculative-dsa-topk-backend
0 --speculative-dspark-align-verify-tokens-to-graph-tier
1 --speculative-dspark-block-size
1 --speculative-dspark-confidence-sts-path
1 --speculative-dspark-sps-table-path
1 --speculative-eagle-topk
0 --speculative-enable-w4a4-mxfp4-megamoe --no-speculative-enable-w4a4-mxfp4-megamoe
1 --speculative-moe-a2a-backend
1 --speculative-moe-runner-backend
1 --speculative-ngram-capacity
1 --speculative-ngram-external-corpus-max-tokens
1 --speculative-ngram-external-corpus-path
1 --speculative-ngram-external-sam-budget
1 --speculative-ngram-match-type
1 --speculative-ngram-max-bfs-breadth
1 --speculative-ngram-max-trie-depth
1 --speculative-ngram-min-bfs-breadth
1 --speculative-num-draft-tokens
1 --speculative-num-steps
1 --speculative-token-map
0 --speculative-use-block-verification
0 --speculative-use-rejection-sampling
1 --ssl-ca-certs
1 --ssl-certfile
1 --ssl-keyfile
1 --ssl-keyfile-password
1 --startup-weight-load-mode
1 --stream-interval
0 --stream-response-default-include-usage
0 --strip-thinking-cache
1 --swa-full-tokens-ratio
1 --swa-prefix-tails
1 --tbo-token-distribution-threshold
1 --tokenizer-backend
+ --tokenizer-metrics-allowed-custom-labels
1 --tokenizer-metrics-custom-labels-header
1 --tokenizer-mode
1 --tokenizer-path
1 --tokenizer-worker-num
1 --tool-call-parser
1 --tool-server
1 --torch-compile-max-bs
1 --tp-size --tensor-parallel-size
1 --trace-modules
1 --triton-attention-num-kv-splits
0 --triton-attention-reduce-in-fp32
1 --triton-attention-split-tile-size
0 --trust-mm-content-hashes
0 --trust-remote-code
0 --trust-request-chat-template
1 --unified-cache-external-linker-backend
1 --unified-cache-external-linker-config
1 --uno-lora-path
0 --use-ray
* --uvicorn-access-log-exclude-prefixes
1 --warmups
1 --watchdog-timeout
1 --watermark-config
1 --weight-cache-mode
1 --weight-cache-socket
1 --weight-cache-timeout
0 --weight-loader-disable-mmap
0 --weight-loader-drop-cache-after-load
0 --weight-loader-prefetch-checkpoints
1 --weight-loader-prefetch-num-threads
1 --weight-version
"""
