//! Ranks as processes that MPI has started, over MPI: one per rank, on one machine or a cluster of CPUs.
//!
//! Every call has two parts. First the ranks meet: a reduction of a few numbers, in which they agree that they make the same
//! call with the same length. Whoever waits there sleeps more and more, so that it takes no core from a rank that still
//! computes. Then the bytes move, and as everybody is there, nobody sleeps. Sums are MPI's own: the standard promises the same
//! result to every rank (MPI 3.1, section 5.9.6).
//!
//! A rank whose process ends is seen by `mpirun` or `srun`, which end the others. A rank that lives and does not come is found
//! by a roll call: who waits longer than the limit tells all others where it is, those in a call answer, and who does not is
//! named on standard error before `MPI_Abort` ends the job.

use super::{Communicator, check_root};
use ::mpi::Threading;
use ::mpi::collective::SystemOperation;
use ::mpi::datatype::PartitionMut;
use ::mpi::environment::Universe;
use ::mpi::request::{Request, Scope, StaticScope, scope};
use ::mpi::topology::SimpleCommunicator;
use ::mpi::traits::{Communicator as _, CommunicatorCollectives, Destination, Root, Source};
use candle_models::{Error, Result};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of one message: MPI counts in `i32`, and nothing is gained by longer ones.
const PIECE: usize = 1 << 26;

/// The time in which a rank that ends alone says why: the launcher ends the others as soon as its process is gone, mostly at once.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// This process as a rank of an MPI job.
pub struct MpiRank {
    rank: usize,
    size: usize,
    limit: Duration,
    job: Mutex<Job>,
}

/// What MPI gave. Communicators are freed before MPI is finalised: the order of the fields.
struct Job {
    calls: Wire,
    /// For roll calls, which must not meet the messages of calls.
    roll: Wire,
    universe: Option<Universe>,
    made: u64,
    /// MPI sums from one buffer into another.
    sum: Vec<f32>,
    /// The ranks no longer agree on where they are.
    broken: bool,
}

/// A communicator, which MPI lets any thread use as long as one does at a time.
struct Wire(SimpleCommunicator);

// SAFETY: a communicator is a handle; MPI was initialised with `MPI_THREAD_SERIALIZED`, so any thread may use it while no other
// makes a call, which the mutex around `Job` sees to.
unsafe impl Send for Wire {}

/// What a rank asks of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    AllReduce { values: usize },
    Broadcast { bytes: usize, root: usize },
    AllGather,
    Barrier,
    End,
}

impl MpiRank {
    /// Joins the ranks of this MPI job, which wait for each other for `limit` at most.
    ///
    /// # Errors
    /// Where MPI was initialised before in this process, or cannot be used by several threads.
    pub fn join(limit: Duration) -> Result<Self> {
        let (universe, threading) = ::mpi::initialize_with_threading(Threading::Serialized)
            .ok_or_else(|| Error::Input("MPI: initialised before in this process, which it allows once only".into()))?;
        if threading < Threading::Serialized {
            return Err(Error::Input(format!("MPI: expected a library for several threads (MPI_THREAD_SERIALIZED), found {threading:?}")));
        }
        let world = universe.world();
        let (rank, size) = (natural(world.rank())?, natural(world.size())?);
        let [calls, roll] = [world.duplicate(), world.duplicate()].map(Wire);
        let job = Job { calls, roll, universe: Some(universe), made: 0, sum: Vec::new(), broken: false };
        Ok(Self { rank, size, limit, job: Mutex::new(job) })
    }

    /// Starts a call: returns when all ranks have started the same.
    fn start(&self, call: Call) -> Result<MutexGuard<'_, Job>> {
        let mut job = self.job.lock().unwrap_or_else(PoisonError::into_inner);
        if job.broken {
            return Err(Error::Input("MPI: the ranks were parted by an earlier error".into()));
        }
        job.made += 1;
        let mine = call.numbers();
        // The largest of a number and of its negative: equal where all are.
        let both: [i64; 6] = std::array::from_fn(|i| if i % 2 == 0 { mine[i / 2] } else { -mine[i / 2] });
        let mut largest = [0_i64; 6];
        scope(|scope| {
            let request = job.calls.0.immediate_all_reduce_into(scope, &both, &mut largest, SystemOperation::max());
            self.complete(request, &job, call, Pace::Patient);
        });
        if largest == both {
            return Ok(job);
        }
        let mut all = vec![0_i64; 3 * self.size];
        scope(|scope| {
            let request = job.calls.0.immediate_all_gather_into(scope, &mine, &mut all[..]);
            self.complete(request, &job, call, Pace::Eager);
        });
        job.broken = true;
        let made = job.made;
        drop(job);
        if call != Call::End && all.chunks_exact(3).any(|numbers| Call::from_numbers(numbers) == Call::End) {
            // Who ends alone has an error that it is about to name. Were this rank to end first, the launcher would end that one before it has.
            std::thread::sleep(LAST_WORDS);
        }
        Err(Error::Input(parted(&all, call, self.rank, made)))
    }

    /// Waits for a request of `call`. Does not return where a rank is missing.
    fn complete<'a, D: ?Sized, S: Scope<'a>>(&self, mut request: Request<'a, D, S>, job: &Job, call: Call, pace: Pace) {
        let mut wait = Wait { rank: self, job, call, pace, start: Instant::now(), looked: Instant::now(), roll: None };
        while let Err(unfinished) = request.test() {
            request = unfinished;
            wait.pause();
        }
    }
}

fn natural(n: i32) -> Result<usize> {
    usize::try_from(n).map_err(|_| Error::Input(format!("MPI: expected a rank or a number of ranks, found {n}")))
}

impl Call {
    fn numbers(self) -> [i64; 3] {
        match self {
            Self::AllReduce { values } => [0, values as i64, 0],
            Self::Broadcast { bytes, root } => [1, bytes as i64, root as i64],
            Self::AllGather => [2, 0, 0],
            Self::Barrier => [3, 0, 0],
            Self::End => [4, 0, 0],
        }
    }

    fn from_numbers(numbers: &[i64]) -> Self {
        let at = |i: usize| usize::try_from(numbers[i]).unwrap_or(0);
        match numbers[0] {
            0 => Self::AllReduce { values: at(1) },
            1 => Self::Broadcast { bytes: at(1), root: at(2) },
            2 => Self::AllGather,
            3 => Self::Barrier,
            _ => Self::End,
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllReduce { values } => write!(f, "the sum of {values} values"),
            Self::Broadcast { bytes, root } => write!(f, "the broadcast of {bytes} bytes from rank {root}"),
            Self::AllGather => f.write_str("the gathering"),
            Self::Barrier => f.write_str("the barrier"),
            Self::End => f.write_str("its end"),
        }
    }
}

/// Why ranks that all are here cannot go on. `all`: three numbers of every rank.
fn parted(all: &[i64], call: Call, rank: usize, made: u64) -> String {
    let calls: Vec<Call> = all.chunks_exact(3).map(Call::from_numbers).collect();
    // The one to name: who ended, or else who differs from rank 0.
    let other = calls.iter().position(|c| *c == Call::End && call != Call::End);
    let other = other.or_else(|| calls.iter().position(|c| *c != calls[0])).unwrap_or(0);
    let (here, there) = if other == rank { (0, rank) } else { (rank, other) };
    format!("rank {there} is at {}, rank {here} at {} (call {made})", calls[there], calls[here])
}

/// How a rank waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// For ranks that may be computing still.
    Patient,
    /// For bytes, while all ranks are there.
    Eager,
}

/// A rank that waits in a call.
struct Wait<'a> {
    rank: &'a MpiRank,
    job: &'a Job,
    call: Call,
    pace: Pace,
    start: Instant,
    /// When it last looked for messages of a roll call.
    looked: Instant,
    roll: Option<Roll>,
}

struct Roll {
    start: Instant,
    /// Calls made by those who have answered.
    made: Vec<Option<u64>>,
}

impl Wait<'_> {
    fn pause(&mut self) {
        let waited = self.start.elapsed();
        let sleep = match self.pace {
            // Ranks that share a core come on only when this one yields.
            _ if waited < Duration::from_micros(2) => return std::hint::spin_loop(),
            // A twentieth of the time that passed anyhow, to at most a millisecond.
            Pace::Patient if waited > Duration::from_micros(500) => (waited / 20).min(Duration::from_millis(1)),
            Pace::Eager if waited > Duration::from_secs(2) => Duration::from_millis(1),
            _ => Duration::ZERO,
        };
        if sleep.is_zero() {
            std::thread::yield_now()
        } else {
            std::thread::sleep(sleep)
        }
        if self.looked.elapsed() > Duration::from_millis(20) {
            self.looked = Instant::now();
            self.listen();
            if waited > self.rank.limit && self.roll.is_none() {
                self.answer();
            }
            self.count();
        }
    }

    /// Reads what others say to a roll call, and answers.
    fn listen(&mut self) {
        let roll = &self.job.roll.0;
        while let Some(status) = roll.any_process().immediate_probe() {
            let mut made = 0_u64;
            roll.process_at_rank(status.source_rank()).receive_into(&mut made);
            // One that came after the call it was meant for.
            if self.roll.is_none() && made < self.job.made {
                continue;
            }
            self.answer();
            if let (Some(roll), Ok(from)) = (&mut self.roll, usize::try_from(status.source_rank())) {
                roll.made[from] = Some(made);
            }
        }
    }

    /// Tells all others once that this rank is here.
    fn answer(&mut self) {
        if self.roll.is_some() {
            return;
        }
        let mut made = vec![None; self.rank.size];
        made[self.rank.rank] = Some(self.job.made);
        self.roll = Some(Roll { start: Instant::now(), made });
        let others = (0..self.rank.size).filter(|r| *r != self.rank.rank);
        for other in others.filter_map(|r| i32::try_from(r).ok()) {
            // Neither waited for nor freed: whom it is for may never read it, and the job is about to end.
            let message: &'static u64 = Box::leak(Box::new(self.job.made));
            std::mem::forget(self.job.roll.0.process_at_rank(other).immediate_send(StaticScope, message));
        }
    }

    /// Ends the job when the others have had time to answer.
    fn count(&mut self) {
        let Some(roll) = &self.roll else { return };
        let grace = (self.rank.limit / 4).clamp(Duration::from_secs(1), Duration::from_secs(10));
        let absent: Vec<String> = (0..roll.made.len()).filter(|r| roll.made[*r].is_none()).map(|r| r.to_string()).collect();
        if absent.is_empty() && roll.start.elapsed() < self.rank.limit || roll.start.elapsed() < grace {
            return;
        }
        let (call, made, waited) = (self.call, self.job.made, self.start.elapsed().as_secs_f64());
        // One rank speaks: the first of those that are here.
        if roll.made.iter().position(Option::is_some) != Some(self.rank.rank) {
            std::thread::sleep(Duration::from_secs(1));
        } else if absent.is_empty() {
            let at: Vec<String> = roll.made.iter().flatten().map(u64::to_string).collect();
            super::tell(&format_args!(
                "all ranks wait (in calls {}), and nothing moves between them: {call}, {waited:.1} s",
                at.join(", ")
            ));
        } else {
            let (rank, did) = if absent.len() == 1 { ("rank", "does") } else { ("ranks", "do") };
            super::tell(&format_args!(
                "{rank} {} did not come to {call} (call {made}) within {waited:.1} s and {did} not answer; the limit is {}",
                absent.join(", "),
                super::connect::LIMIT,
            ));
        }
        self.job.calls.0.abort(1);
    }
}

impl Communicator for MpiRank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn all_reduce(&self, values: &mut [f32]) -> Result<()> {
        let call = Call::AllReduce { values: values.len() };
        let mut job = self.start(call)?;
        let mut sum = std::mem::take(&mut job.sum);
        for values in values.chunks_mut(PIECE / 4) {
            sum.resize(values.len(), 0.0);
            scope(|scope| {
                let request = job.calls.0.immediate_all_reduce_into(scope, &*values, &mut sum[..], SystemOperation::sum());
                self.complete(request, &job, call, Pace::Eager);
            });
            values.copy_from_slice(&sum);
        }
        job.sum = sum;
        Ok(())
    }

    fn broadcast(&self, bytes: &mut [u8], root: usize) -> Result<()> {
        check_root(self, root)?;
        let call = Call::Broadcast { bytes: bytes.len(), root };
        let job = self.start(call)?;
        let process = job.calls.0.process_at_rank(i32::try_from(root).unwrap_or_default());
        for piece in bytes.chunks_mut(PIECE) {
            scope(|scope| self.complete(process.immediate_broadcast_into(scope, piece), &job, call, Pace::Eager));
        }
        Ok(())
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let job = self.start(Call::AllGather)?;
        let (length, mut lengths) = (mine.len() as u64, vec![0_u64; self.size]);
        scope(|scope| {
            let request = job.calls.0.immediate_all_gather_into(scope, &length, &mut lengths[..]);
            self.complete(request, &job, Call::AllGather, Pace::Eager);
        });
        let lengths: Vec<usize> = lengths.into_iter().map(|n| usize::try_from(n).unwrap_or(usize::MAX)).collect();
        let mut all: Vec<Vec<u8>> = lengths.iter().map(|n| Vec::with_capacity(*n)).collect();
        let piece = (PIECE / self.size).max(1);
        for start in (0..lengths.iter().copied().max().unwrap_or(0)).step_by(piece) {
            let within = |length: usize| length.clamp(start, start + piece) - start;
            let counts: Vec<i32> = lengths.iter().map(|n| i32::try_from(within(*n)).unwrap_or_default()).collect();
            let starts: Vec<i32> = counts.iter().scan(0, |end, n| Some(std::mem::replace(end, *end + n))).collect();
            let mut bytes = vec![0_u8; lengths.iter().map(|n| within(*n)).sum()];
            let from = start.min(mine.len());
            let mine = &mine[from..from + within(mine.len())];
            let mut parts = PartitionMut::new(&mut bytes[..], &counts[..], &starts[..]);
            scope(|scope| {
                let request = job.calls.0.immediate_all_gather_varcount_into(scope, mine, &mut parts);
                self.complete(request, &job, Call::AllGather, Pace::Eager);
            });
            let mut rest = &bytes[..];
            for (gathered, length) in all.iter_mut().zip(&lengths) {
                let (piece, others) = rest.split_at(within(*length));
                gathered.extend_from_slice(piece);
                rest = others;
            }
        }
        Ok(all)
    }

    fn barrier(&self) -> Result<()> {
        self.start(Call::Barrier).map(drop)
    }

    fn abandon(&self, why: &str) {
        super::tell(&format_args!("rank {}: {why}", self.rank));
        match self.job.try_lock() {
            Ok(job) => job.calls.0.abort(1),
            // Another thread of this process waits in a call: the launcher ends the others when this process ends.
            Err(_) => std::process::exit(1),
        }
    }
}

impl Drop for MpiRank {
    /// All ranks end together. One that ends alone, with an error of its own, goes without finalising MPI, as do those that were
    /// told of it: `mpirun` ends what is left of the job.
    fn drop(&mut self) {
        let alone = std::thread::panicking() || self.start(Call::End).is_err();
        let job = self.job.get_mut().unwrap_or_else(PoisonError::into_inner);
        if alone {
            std::mem::forget(job.universe.take());
        }
    }
}

impl fmt::Debug for MpiRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MpiRank {} of {}", self.rank, self.size)
    }
}
