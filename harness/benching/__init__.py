"""The bench: what the modes cost on the server at hand, and what recording costs against SGLang's own client.

Place in the flow: over client, recording and server, under the command `shardgate bench`. Imports `contracts`
and the harness' stages; numpy and psutil inside functions.

    stats    the order of turns, percentiles, ratios with their spread
    work     what is asked: prompts, and the outputs that the model is made to say
    load     one batch of requests, timed
    front    the processor time of the server's HTTP process, where it runs on this machine
    equal    whether the modes did the same work
    modes    raw, reasoning and tools in turns, at each load
    clients  `shardgate capture` and `sglang.bench_serving` as processes
    records  the two in turns
    results  what came out, and in words
"""
