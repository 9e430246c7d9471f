//! A step allocates nothing, on no thread of the process: neither one on a shipped policy nor thousands of them; with `--ignored` or
//! `--include-ignored` a million.
//!
//! A program of its own and not one of the test harness, whose other thread allocates when it tells of a test that takes long.
#![allow(clippy::unwrap_used)]

use candle_core::Device;
use candle_models::bundle::Bundle;
use candle_models::engine::{Engine, Options, Session};
use candle_models::families;
use candle_models::nn::{MambaConfig, Params};
use candle_models::policy::{BackboneConfig, Heads, Policy, PolicyConfig};
use candle_models::random::Random;
use candle_models::search::{Expansion, Gumbel, Method, Noise, Puct, Roots, Search, Settings, Sizes};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(f: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.load(Ordering::SeqCst);
    f();
    ALLOCATIONS.load(Ordering::SeqCst) - before
}

fn blocking(session: &mut Session) {
    for _ in 0..50 {
        session.floats_mut("features").unwrap().fill(0.1);
        session.indices_mut("ids").unwrap().fill(1);
        session.step().unwrap();
        assert_eq!(session.indices("action").unwrap().len(), 13);
    }
}

fn task(session: &mut Session) {
    for _ in 0..50 {
        let mut step = session.step_async();
        while std::pin::Pin::new(&mut step).poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            std::thread::yield_now();
        }
    }
}

/// Beside another session one goes through the engine's thread: then that has started, and allocates for it no more.
fn start_thread(engine: &Engine) {
    blocking(&mut engine.open().unwrap());
    assert!(engine.stats().steps > engine.stats().lone_steps);
}

/// A small network with memory, through the engine: what a step would leave behind many steps make visible.
fn many_steps_leave_memory_as_it_was(count: u64) {
    let config = PolicyConfig {
        hidden: 8,
        embedding: 2,
        backbone: BackboneConfig::Mamba { layers: 1, block: MambaConfig { state: 4, ..MambaConfig::default() } },
        heads: Heads::Independent,
        ..PolicyConfig::default()
    };
    let policy = Policy::new(&config, &Params::init(Random::new(1), &Device::Cpu)).unwrap();
    let engine = Engine::start(Arc::new(policy), &Options::default()).unwrap();
    let mut session = engine.open().unwrap();
    start_thread(&engine);
    session.set_f32("features", &[0.1; 288]).unwrap();
    session.indices_mut("ids").unwrap().fill(1);
    (0..10_000).for_each(|_| session.step().unwrap());
    assert_eq!(allocations(|| (0..count).for_each(|_| session.step().unwrap())), 0, "{count} steps");
    assert_eq!(session.frames().unwrap(), 10_000 + count);
    assert!(session.floats("logits").unwrap().iter().all(|l| l.is_finite()));
}

/// What the harness would run. Without it the arguments are read here: a list of the tests, a name that is none of them, only those that are
/// ignored, or those too.
fn main() {
    // The name, whether it is one of those that take long, and the test.
    let tests: [(&str, bool, fn()); 4] = [
        ("fifty_thousand_steps_leave_memory_as_it_was", false, || many_steps_leave_memory_as_it_was(50_000)),
        ("steps_of_shipped_policies_allocate_nothing", false, steps_of_shipped_policies_allocate_nothing),
        ("searches_allocate_nothing", false, searches_allocate_nothing),
        ("deep_a_million_steps_leave_memory_as_it_was", true, || many_steps_leave_memory_as_it_was(1_000_000)),
    ];
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let (mut names, mut skipped) = (Vec::new(), Vec::new());
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--skip" => skipped.extend(rest.next()),
            // Flags with a value.
            "--format" | "--color" | "--test-threads" | "--logfile" | "--shuffle-seed" | "-Z" => drop(rest.next()),
            flag if flag.starts_with('-') => {}
            _ => names.push(argument),
        }
    }
    let matches = |test: &str, name: &str| if has("--exact") { test == name } else { test.contains(name) };
    let chosen = |test: &str, long: bool| {
        let named = names.is_empty() || names.iter().any(|name| matches(test, name));
        named && !skipped.iter().any(|name| matches(test, name)) && (has("--include-ignored") || long == has("--ignored"))
    };
    // One after the other: nothing else may run while they count.
    for (name, _, test) in tests.into_iter().filter(|(name, long, _)| chosen(name, *long)) {
        if has("--list") {
            println!("{name}: test");
        } else {
            test();
            println!("test {name} ... ok");
        }
    }
}

fn searches_allocate_nothing() {
    let mut model = |e: &mut Expansion| {
        (0..e.rows()).for_each(|row| e.embeddings(row).1.fill(1.0));
        [&mut *e.rewards, e.discounts, e.values, e.logits].into_iter().for_each(|x| x.fill(0.5));
        Ok(())
    };
    let rows: Vec<Random> = (0..100).map(|row| Random::new(1).at(row)).collect();
    let roots = Roots { logits: &[0.0; 300], values: &[0.0; 100], embeddings: &[0.0; 200], legal: &[true; 300] };
    let mut search = Search::new(Sizes { batch: 100, simulations: 30, actions: 3, embedding: 2 }).unwrap();
    for method in [Method::Gumbel(Gumbel::default()), Method::Puct(Puct::default())] {
        for simulations in [30, 7] {
            let settings = Settings { method, simulations, max_depth: None };
            let run = || assert_eq!(search.run(&roots, &settings, Noise::Rows(&rows), &mut model).unwrap().rows(), 100);
            assert_eq!(allocations(run), 0, "{method:?}");
        }
    }
}

fn steps_of_shipped_policies_allocate_nothing() {
    assert!(allocations(|| drop(std::hint::black_box(Box::new(1)))) > 0, "the counter counts");
    for bundle in ["../weights/policy-mlp", "../weights/policy-mamba"] {
        let engine = Engine::start(families::shipped().load(&Bundle::open(bundle).unwrap()).unwrap(), &Options::default()).unwrap();
        let mut first = engine.open().unwrap();
        start_thread(&engine);
        blocking(&mut first);
        assert_eq!(allocations(|| blocking(&mut first)), 0, "{bundle} alone");
        let mut second = engine.open().unwrap();
        blocking(&mut second);
        task(&mut second);
        assert_eq!(allocations(|| blocking(&mut second)), 0, "{bundle} through the engine's thread");
        assert_eq!(allocations(|| task(&mut second)), 0, "{bundle} as a future");
    }
}
