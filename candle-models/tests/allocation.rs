//! A step allocates nothing, on no thread of the process: neither one on a shipped policy nor a million of them.
#![allow(clippy::unwrap_used)]

use candle_core::Device;
use candle_models::bundle::Bundle;
use candle_models::engine::{Engine, Options, Session};
use candle_models::exec::SAMPLE;
use candle_models::families;
use candle_models::nn::{MambaConfig, Params};
use candle_models::policy::{BackboneConfig, Heads, Policy, PolicyConfig};
use candle_models::random::Random;
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
        session.indices_mut("action").unwrap().fill(SAMPLE);
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

/// A small network with memory, through the engine: what a step would leave behind a million steps make visible.
fn a_million_steps_leave_memory_as_it_was() {
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
    session.set_f32("features", &[0.1; 288]).unwrap();
    session.indices_mut("action").unwrap().fill(SAMPLE);
    // The engine's thread starts meanwhile.
    (0..10_000).for_each(|_| session.step().unwrap());
    let steps = || (0..1_000_000).for_each(|_| session.step().unwrap());
    assert_eq!(allocations(steps), 0, "a million steps");
    assert_eq!(session.frames().unwrap(), 1_010_000);
    assert!(session.floats("logits").unwrap().iter().all(|l| l.is_finite()));
}

// One test in a binary of its own: nothing else may run while it counts.
#[test]
fn steps_allocate_nothing() {
    a_million_steps_leave_memory_as_it_was();
    steps_of_shipped_policies_allocate_nothing();
}

fn steps_of_shipped_policies_allocate_nothing() {
    assert!(allocations(|| drop(std::hint::black_box(Box::new(1)))) > 0, "the counter counts");
    for bundle in ["../weights/policy-mlp", "../weights/policy-mamba"] {
        let engine = Engine::start(families::shipped().load(&Bundle::open(bundle).unwrap()).unwrap(), &Options::default()).unwrap();
        let mut first = engine.open().unwrap();
        blocking(&mut first);
        assert_eq!(allocations(|| blocking(&mut first)), 0, "{bundle} alone");
        let mut second = engine.open().unwrap();
        blocking(&mut second);
        task(&mut second);
        assert_eq!(allocations(|| blocking(&mut second)), 0, "{bundle} through the engine's thread");
        assert_eq!(allocations(|| task(&mut second)), 0, "{bundle} as a future");
    }
}
