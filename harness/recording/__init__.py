"""The capture run: prompts in, shards out, nothing lost and nothing twice.

Place in the flow: over client, capture and server, under the command `shardgate capture`. Imports `contracts`
and the harness' stages; what is heavy (pyarrow, transformers) only inside functions.

    sources    files and folders of prompts, read as they stand
    prompts    their rows into prompts, each with a key of its content
    quarantine rows of a quarantine into prompts, to be generated again
    pacing     how many requests are under way: grows while the server gains by it, shrinks when it refuses
    serving    one server: booted and restarted, or attached and looked at again
    fleet      all of them: work to where there is room, away from those that are gone
    identity   what a server must be to get work: the same as the first
    generate   one prompt into judged rows, or into a failure with its reason
    parity     prompts against what they should be, each difference with its cause
    journal    what is finished, in frames on disk, before it counts as captured
    store      the run folder: journal into shards, manifest, failures, what is done already
    lock       one run at a time in one folder, on any file system
    settings   what a run was started with; a run goes on under these only
    tripwire   stops a run whose first answers show that it is worth nothing
    status     counts for people, for OpenMetrics and for the summary
    ending     what a run leaves when it ends, or finds nothing left to ask
    runner     all of it together
"""
