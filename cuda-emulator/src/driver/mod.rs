//! The C interface of libcuda over one state behind one lock.
//!
//! Work on streams is queued and runs when somebody waits for it, so that a missing synchronisation shows: a result is not
//! there yet, a source is overwritten too early.
mod capture;
mod config;
mod copy;
mod device;
mod event;
mod function;
mod graph;
mod memory;
mod misc;
mod module;
mod pool;
mod stream;

use std::{
    cell::Cell,
    collections::HashMap,
    ffi::c_void,
    sync::{Arc, Mutex, MutexGuard},
};

pub use capture::*;
pub use config::Config;
pub use copy::*;
pub use device::*;
pub use event::*;
pub use function::*;
pub use graph::*;
pub use memory::*;
pub use misc::*;
pub use module::*;
pub use pool::*;
pub use stream::*;

use crate::{
    error::{Code, Fault},
    log::{self, Counts},
    memory::Memory,
};

/// An opaque handle: a number that was never a handle of another kind.
pub type Handle = *mut c_void;

/// Everything the driver knows.
pub struct Driver {
    pub config: Config,
    pub memory: Memory,
    pub(crate) streams: HashMap<usize, Stream>,
    pub(crate) events: HashMap<usize, Event>,
    pub(crate) modules: HashMap<usize, Loaded>,
    pub(crate) functions: HashMap<usize, Function>,
    pub(crate) captures: HashMap<usize, Capture>,
    pub(crate) graphs: HashMap<usize, Arc<Graph>>,
    pub(crate) execs: HashMap<usize, Exec>,
    pub(crate) graph_memory: HashMap<u64, GraphMemory>,
    pub(crate) pools: HashMap<usize, Pool>,
    pub(crate) retained: HashMap<i32, u32>,
    pub counts: Counts,
    next: usize,
    initialised: bool,
    /// The first fault of a kernel: from then on every call fails with it, as on hardware.
    sticky: Option<Code>,
    allocations_asked: u64,
    launches: u64,
}

static DRIVER: Mutex<Option<Driver>> = Mutex::new(None);

thread_local! {
    /// The current context of the thread: a device plus one, or 0.
    static CONTEXT: Cell<usize> = const { Cell::new(0) };
}

/// The driver, locked; lets go of the lock while a function of the program runs.
pub struct Locked(Option<MutexGuard<'static, Option<Driver>>>);

impl Locked {
    pub fn new() -> Self {
        Self(Some(DRIVER.lock().unwrap_or_else(|e| e.into_inner())))
    }

    /// Calls `f` without the lock.
    pub fn unlocked(&mut self, f: impl FnOnce()) {
        self.0 = None;
        f();
        *self = Self::new();
    }
}

impl Default for Locked {
    fn default() -> Self {
        Self::new()
    }
}

impl std::ops::Deref for Locked {
    type Target = Driver;

    fn deref(&self) -> &Driver {
        self.0.as_ref().and_then(|g| g.as_ref()).expect("the driver exists while it is locked")
    }
}

impl std::ops::DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut Driver {
        self.0.as_mut().expect("locked").get_or_insert_with(Driver::new)
    }
}

impl Driver {
    fn new() -> Self {
        let config = Config::from_env();
        log::at_exit(&config);
        Self {
            config,
            memory: Memory::default(),
            streams: HashMap::new(),
            events: HashMap::new(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            captures: HashMap::new(),
            graphs: HashMap::new(),
            execs: HashMap::new(),
            graph_memory: HashMap::new(),
            pools: HashMap::new(),
            retained: HashMap::new(),
            counts: Counts::default(),
            next: 0x1000,
            initialised: false,
            sticky: None,
            allocations_asked: 0,
            launches: 0,
        }
    }

    /// A fresh handle.
    pub(crate) fn handle(&mut self) -> usize {
        self.next += 0x10;
        self.next
    }

    pub(crate) fn fail(&mut self, fault: &Fault) {
        if self.sticky.is_none() {
            log::error(&format!("{:?}: {}", fault.code, fault.text));
            self.sticky = Some(fault.code);
        }
    }

    /// Runs a grid on the machine.
    pub(crate) fn run_grid(&mut self, launch: &crate::machine::Launch) -> Result<(), Fault> {
        self.launches += 1;
        let config = &self.config;
        let options = crate::machine::Options {
            seed: config.seed.wrapping_add(self.launches.wrapping_mul(0x9e37)),
            races: config.races,
            max_instructions: config.max_instructions,
        };
        let stats = crate::machine::run(launch, &mut self.memory, options)?;
        self.counts.kernel(&self.config, launch, stats);
        Ok(())
    }
}

/// Drops all state, as a new process would have it; for tests.
pub fn reset(config: Config) {
    let mut locked = Locked::new();
    let guard = locked.0.as_mut().expect("locked");
    let mut driver = Driver::new();
    driver.config = config;
    **guard = Some(driver);
    CONTEXT.with(|c| c.set(0));
}

/// What every function of the interface goes through: the lock, the sticky error, the message of a fault.
pub(crate) fn api(f: impl FnOnce(&mut Locked) -> Result<(), Fault>) -> i32 {
    let mut driver = Locked::new();
    // Creates the driver if this is the first call.
    let state: &mut Driver = &mut driver;
    if let Some(code) = state.sticky {
        return code as i32;
    }
    if !state.initialised {
        return Code::NotInitialized as i32;
    }
    match f(&mut driver) {
        Ok(()) => match driver.sticky {
            Some(code) => code as i32,
            None => 0,
        },
        Err(fault) => {
            if !fault.text.is_empty() {
                log::error(&format!("{:?}: {}", fault.code, fault.text));
            }
            fault.code as i32
        }
    }
}

/// The device of the thread's context.
pub(crate) fn current() -> Result<i32, Fault> {
    match CONTEXT.with(Cell::get) {
        0 => Err(Code::InvalidContext.into()),
        c => Ok(c as i32 - 1),
    }
}

/// Writes a result through the caller's pointer; null is an invalid value.
pub(crate) fn put<T>(to: *mut T, value: T) -> Result<(), Fault> {
    if to.is_null() {
        return Err(Code::InvalidValue.into());
    }
    // SAFETY: the caller of the C interface passes a valid place or null.
    unsafe { to.write(value) };
    Ok(())
}

/// Reads a C string.
pub(crate) fn text(from: *const std::ffi::c_char) -> Result<String, Fault> {
    if from.is_null() {
        return Err(Code::InvalidValue.into());
    }
    // SAFETY: the caller of the C interface passes a string with a closing zero or null.
    Ok(unsafe { std::ffi::CStr::from_ptr(from) }.to_string_lossy().into_owned())
}
