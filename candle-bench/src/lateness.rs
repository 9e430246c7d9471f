//! How late the machine itself runs a thread that is due: what late answers of an engine are to be seen beside.
//!
//! On each processor a thread sleeps to the next point of a fine grid of time and notes how late it was woken. It asks for nothing else, so
//! what delayed it (the host of a virtual machine, interrupts) would have delayed any thread there. What such pauses cost an engine is then
//! computed: the same requests are put to a model of it ([`Service`]) with and without them.

use crate::interrupt::Interrupt;
use candle_models::processors::{self, Priority};
use std::time::{Duration, Instant};

/// Distance of two points of the grid. A pause that begins between two of them is seen from the second on, so up to this much of it is missed.
/// Waking up costs a virtual machine some 20 us: at half the distance the watching took a tenth of every processor.
const GRID: Duration = Duration::from_micros(500);
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
                    cpu.into_iter().for_each(processors::stay_on);
                    wake_on_time();
                    // Then what keeps it waiting is the host or the kernel, and not the program that is measured. Where that is not allowed
                    // it waits its turn, and pauses are those of a thread that does.
                    let _ = processors::set_priority(Priority::RealTime);
                    pauses(end, interrupt)
                };
                std::thread::Builder::new().name("lateness".to_owned()).stack_size(1 << 18).spawn_scoped(scope, body)
            };
            // Where the system names no processors, one thread runs anywhere.
            let mut processors: Vec<_> = processors::usable().into_iter().map(Some).collect();
            if processors.is_empty() {
                processors.push(None);
            }
            let threads = processors.into_iter().map(watch).collect::<std::io::Result<Vec<_>>>()?;
            Ok(Self { pauses: threads.into_iter().filter_map(|thread| thread.join().ok()).collect() })
        })
    }

    /// The longest that any processor kept a thread waiting.
    pub fn longest(&self) -> Duration {
        self.pauses.iter().flatten().map(|pause| pause.ran - pause.due).max().unwrap_or_default()
    }

    /// How much later that service would have answered requests that were due at these times, in order, because of the pauses: of one
    /// processor, for each request of that where it is most.
    pub fn delays(&self, due: &[Instant], service: &Service) -> Vec<Duration> {
        let undisturbed = service.answered(due, &[]);
        let mut delays = vec![Duration::ZERO; due.len()];
        for pauses in &self.pauses {
            for ((delay, late), early) in delays.iter_mut().zip(service.answered(due, pauses)).zip(&undisturbed) {
                *delay = late.saturating_duration_since(*early).max(*delay);
            }
        }
        delays
    }
}

/// An engine without a fault: it takes what waits as soon as it is free, all together, and is done after a time that depends on how many
/// they were. Behind a pause it needs a while to catch up, and who asks in that while is late because of the pause too.
#[derive(Debug)]
pub struct Service {
    /// By the number of requests, from one up to the most that it takes together.
    times: Vec<Duration>,
    /// A request that has waited for so long is given up.
    patience: Duration,
}

impl Service {
    /// From times that were measured, each with the number of requests that were answered together: their medians. A number that did not
    /// occur lies on the line between its neighbours, below and above them all it takes as long as the nearest.
    pub fn of(measured: impl Iterator<Item = (usize, Duration)>, most: usize, patience: Duration) -> Self {
        let mut by_number = vec![Vec::new(); most];
        measured.filter(|(number, _)| (1..=most).contains(number)).for_each(|(number, time)| by_number[number - 1].push(time));
        let known: Vec<(usize, Duration)> = by_number
            .iter_mut()
            .enumerate()
            .filter(|(_, times)| !times.is_empty())
            .map(|(at, times)| {
                let middle = times.len() / 2;
                (at, *times.select_nth_unstable(middle).1)
            })
            .collect();
        let time = |at: usize| {
            let above = known.partition_point(|(number, _)| *number < at);
            match (above.checked_sub(1).map(|below| known[below]), known.get(above)) {
                (Some((low, short)), Some(&(high, long))) => {
                    let share = (at - low) as f64 / (high - low) as f64;
                    Duration::from_secs_f64(short.as_secs_f64() * (1.0 - share) + long.as_secs_f64() * share)
                }
                (Some((_, time)), None) | (None, Some(&(_, time))) => time,
                (None, None) => Duration::ZERO,
            }
        };
        Self { times: (0..most).map(time).collect(), patience }
    }

    /// When requests that are due at these times, in order, are answered or given up.
    fn answered(&self, due: &[Instant], pauses: &[Pause]) -> Vec<Instant> {
        let mut processor = Processor { pauses };
        let mut answered = Vec::with_capacity(due.len());
        let mut free = None;
        while let Some(&first) = due.get(answered.len()) {
            let start = processor.run(free.map_or(first, |free| first.max(free)), Duration::ZERO);
            let waiting = &due[answered.len()..];
            let waiting = &waiting[..waiting.partition_point(|due| *due <= start)];
            // They are in order, so those that have waited too long are the first.
            let gone = waiting.partition_point(|due| start - *due > self.patience);
            let together = (waiting.len() - gone).min(self.times.len());
            let done = together.checked_sub(1).map_or(start, |at| processor.run(start, self.times[at]));
            answered.extend(std::iter::repeat_n(start, gone));
            answered.extend(std::iter::repeat_n(done, together));
            free = Some(done);
        }
        answered
    }
}

/// A processor that does not run in its pauses, seen at times that only grow.
struct Processor<'a> {
    pauses: &'a [Pause],
}

impl Processor<'_> {
    /// When work that could begin at `start` is done, and the processor runs.
    fn run(&mut self, start: Instant, work: Duration) -> Instant {
        let mut end = start + work;
        while let Some((pause, later)) = self.pauses.split_first() {
            if pause.due > end {
                break;
            }
            if pause.ran > start {
                end += pause.ran - pause.due.max(start);
            }
            // A pause that ends here can be no part of what comes later.
            self.pauses = later;
        }
        end
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

/// Asks for timers of the calling thread that are not put off to be fired together: Linux does so by up to 50 us.
#[cfg(target_os = "linux")]
pub fn wake_on_time() {
    // SAFETY: sets a number of the calling thread; the other arguments are not read.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) };
}

#[cfg(not(target_os = "linux"))]
pub fn wake_on_time() {}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Pauses of each processor, from their begin to their end in milliseconds since the start.
    fn lateness(start: Instant, pauses: &[&[(u64, u64)]]) -> Lateness {
        let pause = |&(due, ran): &(u64, u64)| Pause { due: start + ms(due), ran: start + ms(ran) };
        Lateness { pauses: pauses.iter().map(|of| of.iter().map(pause).collect()).collect() }
    }

    /// How late requests are, in milliseconds, that are due at these times behind these pauses.
    fn delays(pauses: &[&[(u64, u64)]], due: &[u64], service: &Service) -> Vec<u128> {
        let start = Instant::now();
        let due: Vec<Instant> = due.iter().map(|due| start + ms(*due)).collect();
        lateness(start, pauses).delays(&due, service).iter().map(Duration::as_millis).collect()
    }

    #[test]
    fn a_pause_delays_who_asks_in_it_and_who_waits_behind_them() {
        let one = Service { times: vec![ms(2)], patience: ms(100) };
        // Before; cut short by the pause; within it; behind it while others are served; afterwards.
        assert_eq!(delays(&[&[(10, 20)]], &[0, 9, 12, 15, 21, 40], &one), [0, 10, 9, 8, 4, 0]);
        // A pause that was over before anyone asked, and one that begins when the last is answered.
        assert_eq!(delays(&[&[(1, 5), (12, 13)]], &[6, 10], &one), [0, 1]);
        // Several within one answer add up.
        assert_eq!(delays(&[&[(10, 11), (12, 14), (14, 15)]], &[9], &one), [4]);
        assert_eq!(delays(&[], &[1, 2], &one), [0, 0]);
        assert!(delays(&[&[(1, 2)]], &[], &one).is_empty());
    }

    #[test]
    fn the_processor_counts_where_the_pauses_cost_most() {
        let one = Service { times: vec![ms(1)], patience: ms(100) };
        let pauses: [&[(u64, u64)]; 3] = [&[(10, 20)], &[(12, 15), (40, 60)], &[]];
        assert_eq!(delays(&pauses, &[11, 14, 50], &one), [9, 7, 10]);
        assert_eq!(lateness(Instant::now(), &pauses).longest(), ms(20));
        assert_eq!(lateness(Instant::now(), &[&[]]).longest(), ms(0));
    }

    #[test]
    fn what_waits_is_answered_together_or_given_up() {
        let two = Service { times: vec![ms(4), ms(5)], patience: ms(8) };
        // Without the pause they are answered at 4, 14, 18, 22, 30. With it, what came at 10 is given up at 20, 14 and 15 are answered at 25.
        assert_eq!(delays(&[&[(10, 20)]], &[0, 10, 14, 15, 26], &two), [0, 6, 7, 3, 0]);
        // Without it one at 14, two at 19; with it two at 18 and one at 22.
        assert_eq!(delays(&[&[(10, 13)]], &[10, 11, 12], &two), [4, 0, 3]);
    }

    #[test]
    fn a_service_takes_the_median_of_what_was_measured_for_so_many() {
        let measured = [(2, 30), (2, 10), (2, 20), (4, 40), (9, 70)].map(|(number, time)| (number, ms(time)));
        let service = Service::of(measured.into_iter(), 5, ms(1));
        assert_eq!(service.times, [20, 20, 30, 40, 40].map(ms));
        assert_eq!(Service::of(std::iter::empty(), 2, ms(1)).times, [Duration::ZERO; 2]);
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
