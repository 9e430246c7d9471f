//! How late the machine itself runs a thread that is due: what late answers of an engine are to be seen beside.
//!
//! On each processor a thread sleeps to the next point of a fine grid of time and notes how late it was woken. It asks for nothing else, so
//! what delayed it (other programs, the host of a virtual machine, interrupts) would have delayed any thread there.

use crate::interrupt::Interrupt;
use std::time::{Duration, Instant};

/// Distance of two points of the grid. A pause that begins between two of them is seen from the second on, so up to this much of it is missed.
const GRID: Duration = Duration::from_micros(250);
/// Waking up takes so long on a machine that does nothing else; what is not later counts as in time.
const IN_TIME: Duration = Duration::from_micros(150);

/// Times at which threads that were due did not run, by processor, each list in order.
#[derive(Debug, Default)]
pub struct Lateness {
    pauses: Vec<Vec<Pause>>,
}

/// From the moment when a thread was due to that when it ran.
#[derive(Debug, Clone, Copy)]
struct Pause {
    due: Instant,
    ran: Instant,
}

impl Lateness {
    /// Watches every processor that this process may use until then, or until the run is interrupted.
    ///
    /// # Errors
    /// If threads cannot be started.
    pub fn until(end: Instant, interrupt: &Interrupt) -> std::io::Result<Self> {
        std::thread::scope(|scope| {
            let watch = |cpu: Option<usize>| {
                let body = move || {
                    cpu.iter().for_each(|&cpu| stay_on(cpu));
                    wake_on_time();
                    pauses(end, interrupt)
                };
                std::thread::Builder::new().name("lateness".to_owned()).stack_size(1 << 18).spawn_scoped(scope, body)
            };
            let threads = processors().into_iter().map(watch).collect::<std::io::Result<Vec<_>>>()?;
            Ok(Self { pauses: threads.into_iter().filter_map(|thread| thread.join().ok()).collect() })
        })
    }

    /// The longest that any processor kept a thread waiting.
    pub fn longest(&self) -> Duration {
        self.pauses.iter().flatten().map(|pause| pause.ran - pause.due).max().unwrap_or_default()
    }

    /// How much of a span of time the machine took: the part in which threads that were due did not run, of the processor where it is longest.
    pub fn within(&self, from: Instant, to: Instant) -> Duration {
        let of = |pauses: &Vec<Pause>| {
            let first = pauses.partition_point(|pause| pause.ran <= from);
            let inside = pauses[first..].iter().take_while(|pause| pause.due < to);
            inside.map(|pause| pause.ran.min(to).saturating_duration_since(pause.due.max(from))).sum()
        };
        self.pauses.iter().map(of).max().unwrap_or_default()
    }
}

fn pauses(end: Instant, interrupt: &Interrupt) -> Vec<Pause> {
    let mut found = Vec::with_capacity(1 << 12);
    let mut due = Instant::now() + GRID;
    while due < end && !interrupt.came() {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let ran = Instant::now();
        if ran > due + IN_TIME {
            found.push(Pause { due, ran });
        }
        // The points that were slept over are not due any more.
        due = (due + GRID).max(ran);
    }
    found
}

/// The processors that this process may use; where the system does not say, one that is not named.
#[cfg(target_os = "linux")]
fn processors() -> Vec<Option<usize>> {
    // SAFETY: a set of processors is plain bits, for which zero is valid.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is as large as said, and belongs to this frame; 0 is the calling thread.
    if unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) } != 0 {
        return vec![None];
    }
    // SAFETY: every number is below the size of the set.
    (0..8 * size_of_val(&set)).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).map(Some).collect()
}

#[cfg(not(target_os = "linux"))]
fn processors() -> Vec<Option<usize>> {
    vec![None]
}

/// Keeps the calling thread on one processor. Where that is refused it runs anywhere, and sees the pauses of where it is.
#[cfg(target_os = "linux")]
fn stay_on(cpu: usize) {
    // SAFETY: as above; the number comes from such a set, and the call reads the set only.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
    }
}

#[cfg(not(target_os = "linux"))]
fn stay_on(_cpu: usize) {}

/// Asks for timers of the calling thread that are not put off to be fired together: Linux does so by up to 50 us.
#[cfg(target_os = "linux")]
fn wake_on_time() {
    // SAFETY: sets a number of the calling thread; the other arguments are not read.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) };
}

#[cfg(not(target_os = "linux"))]
fn wake_on_time() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_machine_took_of_a_span_is_the_overlap_on_the_processor_where_it_is_longest() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let pause = |due: u64, ran: u64| Pause { due: at(due), ran: at(ran) };
        let lateness = Lateness { pauses: vec![vec![pause(10, 20), pause(30, 31)], vec![pause(12, 15), pause(40, 60)], Vec::new()] };
        let took = |from: u64, to: u64| lateness.within(at(from), at(to)).as_millis();
        assert_eq!(lateness.longest(), Duration::from_millis(20));
        // Before, whole, cut at both ends, over a gap, and on the other processor.
        assert_eq!([took(0, 10), took(0, 25), took(13, 18), took(15, 31), took(45, 50), took(61, 90)], [0, 10, 5, 6, 5, 0]);
        assert_eq!(Lateness::default().within(at(0), at(9)), Duration::ZERO);
    }

    #[test]
    fn pauses_are_in_order_and_do_not_overlap() {
        let start = Instant::now();
        let lateness = Lateness::until(start + Duration::from_millis(200), &Interrupt::default()).unwrap();
        assert!(!lateness.pauses.is_empty());
        for pauses in &lateness.pauses {
            assert!(pauses.iter().all(|pause| pause.ran > pause.due && pause.due > start));
            assert!(pauses.windows(2).all(|pair| pair[0].ran <= pair[1].due));
        }
    }
}
