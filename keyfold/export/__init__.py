"""A topic's log, or its latest state, as Parquet files: `keyfold log export`.

    request     what is asked for                       rows       typed columns, and what becomes of misfits
    source      one pinned version of a partition       files      row groups, files of bounded size
    target      a folder, or a prefix of a bucket       run        all partitions, the summary, the commit

Nothing is to be seen before all of it is there.
"""
