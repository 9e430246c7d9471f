//! Ranks as threads of one process: for tests, and for several devices in one process.

use super::{Communicator, check_root};
use candle_models::ops::slices;
use candle_models::{Error, Result};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One rank of a group of threads.
#[derive(Debug)]
pub struct ThreadRank {
    rank: usize,
    group: Arc<Group>,
}

#[derive(Debug)]
struct Group {
    size: usize,
    limit: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

/// A round: every rank brings its bytes, the last one hands them out, every rank takes them.
#[derive(Debug, Default)]
struct State {
    round: u64,
    brought: Vec<Option<Vec<u8>>>,
    handed_out: Arc<Vec<Vec<u8>>>,
    lost: Option<String>,
}

/// The ranks of a group, which wait for each other for `limit` at most.
pub fn group(size: usize, limit: Duration) -> Vec<ThreadRank> {
    let state = Mutex::new(State { brought: vec![None; size], ..State::default() });
    let group = Arc::new(Group { size, limit, state, changed: Condvar::new() });
    (0..size).map(|rank| ThreadRank { rank, group: group.clone() }).collect()
}

impl Group {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A rank that panicked with the lock held has called `abandon` in its drop.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What every rank brought to this round.
    fn exchange(&self, rank: usize, mine: Vec<u8>) -> Result<Arc<Vec<Vec<u8>>>> {
        let start = Instant::now();
        let mut state = self.lock();
        if let Some(why) = &state.lost {
            return Err(Error::Input(why.clone()));
        }
        let round = state.round;
        state.brought[rank] = Some(mine);
        if state.brought.iter().all(Option::is_some) {
            state.handed_out = Arc::new(state.brought.iter_mut().filter_map(Option::take).collect());
            state.round += 1;
            self.changed.notify_all();
        }
        while state.round == round {
            if let Some(why) = &state.lost {
                return Err(Error::Input(why.clone()));
            }
            let Some(left) = self.limit.checked_sub(start.elapsed()) else {
                let missing = state.brought.iter().position(Option::is_none).unwrap_or(rank);
                let why = format!("rank {missing} did not come within {:?}", self.limit);
                state.lost = Some(why.clone());
                self.changed.notify_all();
                return Err(Error::Input(why));
            };
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        // The next round cannot end, and replace this, before this rank has joined it.
        Ok(state.handed_out.clone())
    }
}

impl Communicator for ThreadRank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.group.size
    }

    fn all_reduce(&self, values: &mut [f32]) -> Result<()> {
        let mine: &[u8] = bytemuck::cast_slice(values);
        let all = self.group.exchange(self.rank, mine.to_vec())?;
        if let Some(rank) = all.iter().position(|other| other.len() != values.len() * 4) {
            return Err(Error::Input(format!(
                "rank {rank}: {} values to sum, {} on rank {}",
                all[rank].len() / 4,
                values.len(),
                self.rank
            )));
        }
        // In the order of ranks on every rank: the same bits.
        values.fill(0.0);
        let mut theirs = vec![0f32; values.len()];
        for other in all.iter() {
            bytemuck::cast_slice_mut(&mut theirs).copy_from_slice(other);
            slices::add(values, &theirs);
        }
        Ok(())
    }

    fn broadcast(&self, bytes: &mut [u8], root: usize) -> Result<()> {
        check_root(self, root)?;
        let mine = if self.rank == root { bytes.to_vec() } else { Vec::new() };
        let all = self.group.exchange(self.rank, mine)?;
        if all[root].len() != bytes.len() {
            return Err(Error::Input(format!("rank {root} sent {} bytes, rank {} expected {}", all[root].len(), self.rank, bytes.len())));
        }
        bytes.copy_from_slice(&all[root]);
        Ok(())
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        Ok(self.group.exchange(self.rank, mine.to_vec())?.to_vec())
    }

    fn barrier(&self) -> Result<()> {
        self.group.exchange(self.rank, Vec::new()).map(drop)
    }

    fn abandon(&self, why: &str) {
        self.group.lock().lost.get_or_insert_with(|| format!("rank {}: {why}", self.rank));
        self.group.changed.notify_all();
    }
}

impl Drop for ThreadRank {
    /// A rank that is gone will not come any more: the others need not wait out the limit.
    fn drop(&mut self) {
        self.abandon(if std::thread::panicking() { "panicked" } else { "is done" });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn on_all<T: Send>(size: usize, limit: Duration, f: impl Fn(ThreadRank) -> T + Sync) -> Vec<T> {
        thread::scope(|scope| {
            let threads: Vec<_> = group(size, limit).into_iter().map(|rank| scope.spawn(|| f(rank))).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        })
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn all_ranks_get_the_same() {
        let results = on_all(3, LONG, |rank| {
            let mut sums = Vec::new();
            for round in 0..200 {
                let mut values = [rank.rank() as f32 + 0.1, round as f32];
                rank.all_reduce(&mut values).unwrap();
                sums.push(values);
                let mut bytes = [rank.rank() as u8; 3];
                rank.broadcast(&mut bytes, round % 3).unwrap();
                assert_eq!(bytes, [(round % 3) as u8; 3]);
                let all = rank.all_gather(&vec![7; rank.rank()]).unwrap();
                assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [0, 1, 2]);
                rank.barrier().unwrap();
            }
            sums
        });
        assert_eq!(results[0], results[1]);
        assert_eq!(results[0], results[2]);
        assert!((results[0][199][0] - 3.3).abs() < 1e-6 && results[0][199][1] == 3.0 * 199.0);
    }

    #[test]
    fn a_rank_that_is_missing_is_named() {
        // Rank 0 comes when the others have given it up. The first that is missing is named: that is rank 0, whichever of the others gives up
        // first, and whether the other one has come by then or not.
        let given_up = std::sync::Barrier::new(3);
        let errors = on_all(3, Duration::from_millis(300), |rank| {
            if rank.rank() == 0 {
                given_up.wait();
                return rank.barrier().unwrap_err().to_string();
            }
            let error = rank.barrier().unwrap_err().to_string();
            given_up.wait();
            error
        });
        assert!(errors[0].contains("rank 0 did not come within 300ms"), "{errors:?}");
        assert!(errors.iter().all(|e| e == &errors[0]), "{errors:?}");
    }

    #[test]
    fn a_rank_that_gives_up_is_named_at_once() {
        // A rank that is not told would wait as long as this test may take.
        let errors = on_all(2, Duration::from_secs(1_000_000), |rank| match rank.rank() {
            0 => rank.all_reduce(&mut [1.0]).unwrap_err().to_string(),
            _ => {
                rank.abandon("the disk is full");
                String::new()
            }
        });
        assert!(errors[0].ends_with("rank 1: the disk is full"), "{errors:?}");
    }

    #[test]
    fn other_lengths_are_an_error() {
        let errors = on_all(2, LONG, |rank| rank.all_reduce(&mut vec![0.0; 1 + rank.rank()]).unwrap_err().to_string());
        assert!(errors[0].contains("rank 1: 2 values to sum, 1 on rank 0"), "{errors:?}");
    }
}
