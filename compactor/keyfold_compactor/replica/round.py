"""One partition's rounds: what the source has now goes to the replica, objects first, then one commit.

    look        the source's manifest, then the replica's; equal content: nothing is written on either side
    rule        may this version go there (`keyfold_compactor.replica.rule`)
    claim       the replica's epoch, once for all rounds of this process; the source's manifest is read AGAIN after it
    pin         a hold at the source, where much is to be copied, or objects went away under a round before
    copy        what the replica has not, several at a time; kept schemas first
    commit      the replica's manifest: this version of the source, and whose epoch it is
    cursor      the source learns up to which offset the replica has everything, and the pin goes
"""

from __future__ import annotations
