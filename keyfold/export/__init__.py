"""Export of a topic's log, or of its latest state, to Parquet files: `keyfold log export`.

    request     options of an export                    rows       typed columns, and values that do not fit
    source      one pinned version of a partition       files      row groups, files of bounded size
    target      a folder, or a prefix of a bucket       run        all partitions, the summary, the commit

An export becomes visible when it is complete.
"""
