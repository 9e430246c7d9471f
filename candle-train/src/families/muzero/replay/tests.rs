//! What can be drawn, what its targets are, and what is kept.

use super::*;

const HORIZON: Horizon = Horizon { unroll: 2, rewards: 2, discount: 0.5 };

fn replay(positions: usize) -> Replay {
    Replay::new(Sizes { lanes: 1, positions, floats: 1, actions: 2 })
}

/// Position i of the lane: seen i, rewarded i, worth 10 i.
fn push(replay: &mut Replay, i: u32, player: u8, end: End) {
    push_drawn(replay, (i, false), player, end);
}

fn push_drawn(replay: &mut Replay, (i, drawn): (u32, bool), player: u8, end: End) {
    let rest = Rest { value: 10.0 * i as f32, action: i % 2, reward: if end == End::After { 0.0 } else { i as f32 }, player, drawn, end };
    let policy = [0.25, 0.75];
    replay.push(0, Position { floats: &[i as f32], legal: &[true, true], policy: &policy, rest }, &HORIZON);
}

fn written(replay: &Replay) -> Vec<u8> {
    let mut bytes = Vec::new();
    replay.write(&mut bytes).unwrap();
    bytes
}

fn read(sizes: Sizes, mut bytes: &[u8]) -> io::Result<Replay> {
    let mut replay = Replay::new(sizes);
    replay.read(&mut bytes).map(|()| replay)
}

fn drawable(replay: &Replay) -> Vec<usize> {
    (0..replay.priorities.leaves().len()).filter(|slot| replay.priorities.get(*slot) > 0.0).collect()
}

#[test]
fn a_position_can_be_drawn_when_its_targets_are_known() {
    let mut replay = replay(8);
    for i in 0..5 {
        push(&mut replay, i, 0, End::None);
        assert_eq!(drawable(&replay), (0..(i as usize + 1).saturating_sub(4)).collect::<Vec<_>>(), "after {i}");
    }
    push(&mut replay, 5, 0, End::Terminated);
    push(&mut replay, 6, 0, End::After);
    assert_eq!(drawable(&replay), [0, 1, 2, 3, 4, 5]);
    // The ring forgets its oldest.
    push(&mut replay, 7, 0, End::None);
    push(&mut replay, 8, 0, End::None);
    assert_eq!((drawable(&replay), replay.len()), (vec![1, 2, 3, 4, 5], 8));
    for _ in 0..3 {
        let drawn = replay.draw(64, Random::new(3)).unwrap();
        assert!(drawn.iter().all(|(slot, share)| (1..=5).contains(slot) && (*share - 1.0).abs() < 1e-6), "{drawn:?}");
    }
}

#[test]
fn targets_follow_the_episode_to_its_end_and_not_beyond() {
    let mut replay = replay(16);
    for (i, end) in [End::None, End::None, End::Terminated, End::After, End::None, End::Truncated, End::After].into_iter().enumerate() {
        push(&mut replay, i as u32, 0, end);
    }
    let of = |slot| {
        let mut targets = Targets::default();
        replay.targets(slot, &HORIZON, (Random::new(1), None), &mut targets);
        targets
    };
    let first = of(0);
    assert_eq!(first.floats, [0.0]);
    assert_eq!(first.rewards, [0.0, 1.0]);
    // 0 + .5 + .25 * 20; 1 + .5 * 2, behind which nothing comes; 2.
    assert_eq!(first.values, [5.5, 2.0, 2.0]);
    assert_eq!((first.policy_counts, first.value_counts), (vec![1.0; 3], vec![1.0; 3]));
    // Behind the end of a game all is zero and known; of policies nothing is.
    let last = of(2);
    assert_eq!((last.rewards, last.reward_counts), (vec![2.0, 0.0], vec![1.0, 1.0]));
    assert_eq!((last.values, last.value_counts), (vec![2.0, 0.0, 0.0], vec![1.0; 3]));
    assert_eq!(last.policy_counts, [1.0, 0.0, 0.0]);
    // Behind one that was cut short nothing is known, and its last value counts.
    let cut = of(4);
    assert_eq!(cut.values[..2], [4.0 + 0.5 * 5.0 + 0.25 * 60.0, 5.0 + 0.5 * 60.0]);
    assert_eq!((cut.value_counts, cut.reward_counts), (vec![1.0, 1.0, 0.0], vec![1.0, 1.0]));
}

#[test]
fn an_episode_that_nobody_goes_on_with_is_cut_short() {
    for end in [End::None, End::Terminated, End::Truncated] {
        let mut replay = replay(16);
        (0..3).for_each(|i| push(&mut replay, i, 0, End::None));
        push(&mut replay, 3, 0, end);
        replay.cut();
        assert_eq!(drawable(&replay), [0, 1, 2]);
        let mut targets = Targets::default();
        replay.targets(1, &HORIZON, (Random::new(1), None), &mut targets);
        // Up to what the search said of position 3; of what was done there nothing is known.
        assert_eq!(targets.values[..2], [1.0 + 0.5 * 2.0 + 0.25 * 30.0, 2.0 + 0.5 * 30.0]);
        assert_eq!((targets.value_counts, targets.reward_counts), (vec![1.0, 1.0, 0.0], vec![1.0, 1.0]));
        // The next episode is another one, which cannot be drawn before its own targets are known; nothing is cut twice.
        replay.cut();
        (4..8).for_each(|i| push(&mut replay, i, 0, End::None));
        assert_eq!(drawable(&replay), [0, 1, 2]);
        push(&mut replay, 8, 0, End::None);
        assert_eq!(drawable(&replay), [0, 1, 2, 4]);
    }
    // Cut behind its first position it has no move.
    let mut replay = replay(16);
    [End::Terminated, End::After, End::None].into_iter().enumerate().for_each(|(i, end)| push(&mut replay, i as u32, 0, end));
    replay.cut();
    assert_eq!((drawable(&replay), replay.rests[1].end), (vec![0], End::After));
}

#[test]
fn between_two_players_what_one_wins_the_other_loses() {
    let mut replay = replay(16);
    for (i, end) in [End::None, End::None, End::Terminated, End::After].into_iter().enumerate() {
        push(&mut replay, i as u32, i as u8 % 2, end);
    }
    let mut targets = Targets::default();
    replay.targets(0, &Horizon { rewards: 9, discount: 1.0, ..HORIZON }, (Random::new(1), None), &mut targets);
    assert_eq!(targets.values, [0.0 - 1.0 + 2.0, 1.0 - 2.0, 2.0]);
}

/// What comes of a drawn move counts neither for who made it nor before.
#[test]
fn values_go_by_the_search_from_a_drawn_move_on() {
    let mut replay = replay(16);
    for (i, end) in [End::None, End::None, End::None, End::Terminated, End::After].into_iter().enumerate() {
        push_drawn(&mut replay, (i as u32, i == 1), i as u8 % 2, end);
    }
    let mut targets = Targets::default();
    replay.targets(0, &Horizon { unroll: 3, rewards: 9, discount: 1.0 }, (Random::new(1), None), &mut targets);
    // 0 and what the search said to the other at position 1; that itself; the rewards 2 and 3 of either; 3.
    assert_eq!(targets.values, [0.0 - 10.0, 10.0, 2.0 - 3.0, 3.0]);
    assert_eq!(targets.value_counts, [1.0; 4]);
    let again = read(replay.sizes(), &written(&replay)).unwrap();
    assert_eq!(again.rests, replay.rests);
}

#[test]
fn a_symmetry_turns_what_is_seen_and_what_is_done() {
    let mut replay = Replay::new(Sizes { lanes: 1, positions: 8, floats: 3, actions: 3 });
    for (i, end) in [End::None, End::Terminated, End::After].into_iter().enumerate() {
        let rest = Rest { action: i as u32, end, ..Rest::default() };
        let position = Position { floats: &[1.0, 2.0, 3.0], legal: &[true; 3], policy: &[0.5, 0.3, 0.2], rest };
        replay.push(0, position, &HORIZON);
    }
    let turn = Symmetry { floats: vec![1, 2, 0], classes: vec![2, 0, 1] };
    let mut targets = Targets::default();
    replay.targets(0, &HORIZON, (Random::new(1), Some(&turn)), &mut targets);
    assert_eq!(targets.floats, [2.0, 3.0, 1.0]);
    assert_eq!(targets.policies, [0.2, 0.5, 0.3, 0.2, 0.5, 0.3, 0.0, 0.0, 0.0]);
    // Action 0 is class 1 there, action 1 class 2.
    assert_eq!(targets.actions, [1, 2]);
    // The position behind the last move was seen, and nothing behind it.
    let (mut floats, mut counts) = (Vec::new(), Vec::new());
    replay.seen_behind(0, 3, Some(&turn), (&mut floats, &mut counts));
    assert_eq!((floats, counts), (vec![2.0, 3.0, 1.0, 2.0, 3.0, 1.0, 0.0, 0.0, 0.0], vec![1.0, 1.0, 0.0]));
}

#[test]
fn what_was_written_is_read_and_goes_on_alike_in_memory_and_on_disk() {
    let mut replay = replay(6);
    (0..9).for_each(|i| push(&mut replay, i, 0, End::None));
    replay.set_priorities(&[1], &[3.0], 0.5);
    let (bytes, dir) = (written(&replay), tempfile::tempdir().unwrap());
    let mut again = read(replay.sizes(), &bytes).unwrap();
    let mut on_disk = Replay::on_disk(replay.sizes(), dir.path()).unwrap();
    on_disk.copy_lane(0, &again, 0);
    assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none(), "a file that could be left behind");
    for i in 9..12 {
        for other in [&mut again, &mut on_disk] {
            assert_eq!(other.draw(16, Random::new(i)).unwrap(), replay.draw(16, Random::new(i)).unwrap());
            push(other, i as u32, 0, End::None);
        }
        push(&mut replay, i as u32, 0, End::None);
    }
    assert_eq!((written(&again), written(&on_disk)), (written(&replay), written(&replay)));
    assert!(read(replay.sizes(), &bytes[..bytes.len() - 1]).is_err());
}
