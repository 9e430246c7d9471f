//! A rank that is lost is named to all others, soon.

use crate::{Rank, command, port, start};
use std::io::Write;
use std::process::Stdio;

fn three(script: &str) -> [Rank; 3] {
    let port = port();
    let mut ranks = [0, 1, 2].map(|rank| start(&mut command(rank, 3, port, script)));
    ranks.iter_mut().for_each(Rank::met);
    ranks
}

/// Both name what happened: a rank that does not learn of it ends with another word, after minutes.
fn both_say(ranks: [Rank; 2], why: &str) {
    for rank in ranks {
        let (code, said) = rank.end();
        assert_eq!(code, 3, "{said}");
        assert!(said.contains(&format!("error: {why}")), "{said}");
    }
}

#[test]
fn a_killed_rank_is_named() {
    let [rank_0, rank_1, rank_2] = three("stay");
    rank_1.signal("KILL");
    both_say([rank_0, rank_2], "rank 1: its connection ended: the process is gone");
}

#[test]
fn the_end_of_rank_0_is_noticed_by_all() {
    let [rank_0, rank_1, rank_2] = three("stay");
    rank_0.signal("KILL");
    both_say([rank_1, rank_2], "rank 0: its connection ended: the process is gone");
}

pub fn a_rank_that_is_stopped_is_named() {
    let [rank_0, rank_1, rank_2] = three("stay");
    rank_2.signal("STOP");
    both_say([rank_0, rank_1], "rank 2: silent for 10 s");
}

#[test]
fn a_rank_that_gives_up_says_why() {
    let [rank_0, rank_1, rank_2] = three("abandon");
    both_say([rank_0, rank_2], "rank 1: the disk is full");
    assert_eq!(rank_1.end().0, 0);
}

#[test]
fn a_rank_that_panics_is_named() {
    let [rank_0, rank_1, rank_2] = three("panic");
    both_say([rank_0, rank_2], "rank 1: panicked");
    assert_eq!(rank_1.end().0, 101);
}

#[test]
fn the_slowest_rank_is_known_to_all() {
    for rank in three("count") {
        let (code, said) = rank.end();
        assert!(code == 0 && said.contains("slowest (1, 7)"), "{said}");
    }
}

#[test]
fn ranks_that_leave_wait_for_the_last() {
    let port = port();
    let mut ranks = [0, 1, 2].map(|rank| start(command(rank, 3, port, "leave together").stdin(Stdio::piped())));
    ranks.iter_mut().for_each(Rank::met);
    // Before the last one has been told to, none has gone.
    assert!(ranks[..2].iter_mut().all(|rank| rank.0.try_wait().unwrap().is_none()));
    ranks[2].0.stdin.take().unwrap().write_all(b"!").unwrap();
    for rank in ranks {
        let (code, said) = rank.end();
        assert!(code == 0 && said.contains(" is gone\n") && !said.contains("error"), "{said}");
    }
}
