//! cuRAND: seeded fills of device memory, as work on a stream. The numbers are not those of the real library.
use std::{collections::HashMap, sync::Mutex};

use crate::{
    driver::{Handle, Work, WorkKind, api},
    machine::Rng,
};

const NOT_INITIALIZED: i32 = 101;
const LAUNCH_FAILURE: i32 = 201;

#[derive(Clone, Copy, Default)]
struct Generator {
    stream: usize,
    seed: u64,
    /// Numbers drawn so far.
    drawn: u64,
}

static GENERATORS: Mutex<Option<HashMap<usize, Generator>>> = Mutex::new(None);

fn with<T>(generator: Handle, f: impl FnOnce(&mut Generator) -> T) -> Result<T, i32> {
    let mut all = GENERATORS.lock().unwrap_or_else(|e| e.into_inner());
    all.get_or_insert_default().get_mut(&(generator as usize)).map(f).ok_or(NOT_INITIALIZED)
}

fn status(result: Result<(), i32>) -> i32 {
    result.err().unwrap_or(0)
}

#[unsafe(no_mangle)]
pub extern "C" fn curandCreateGenerator(generator: *mut Handle, _kind: u32) -> i32 {
    let mut key = 0;
    let code = api(|driver| {
        crate::driver::current()?;
        key = driver.handle();
        Ok(())
    });
    if code != 0 {
        return 203;
    }
    GENERATORS.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert_default().insert(key, Generator::default());
    // SAFETY: the caller passes a place for the handle.
    unsafe { generator.write(key as Handle) };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn curandDestroyGenerator(generator: Handle) -> i32 {
    let mut all = GENERATORS.lock().unwrap_or_else(|e| e.into_inner());
    if all.get_or_insert_default().remove(&(generator as usize)).is_some() { 0 } else { NOT_INITIALIZED }
}

#[unsafe(no_mangle)]
pub extern "C" fn curandSetPseudoRandomGeneratorSeed(generator: Handle, seed: u64) -> i32 {
    status(with(generator, |g| (g.seed, g.drawn) = (seed, 0)))
}

#[unsafe(no_mangle)]
pub extern "C" fn curandSetGeneratorOffset(generator: Handle, offset: u64) -> i32 {
    status(with(generator, |g| g.drawn = offset))
}

#[unsafe(no_mangle)]
pub extern "C" fn curandSetStream(generator: Handle, stream: Handle) -> i32 {
    status(with(generator, |g| g.stream = stream as usize))
}

#[unsafe(no_mangle)]
pub extern "C" fn curandGetVersion(version: *mut i32) -> i32 {
    // SAFETY: the caller passes a place for the number.
    unsafe { version.write(100_400) };
    0
}

/// Fills `n` values of `T` with what `draw` makes of two words of random bits.
fn fill<T: Copy + 'static>(generator: Handle, to: u64, n: usize, draw: impl Fn(u64, u64) -> T + Send + Sync + 'static) -> i32 {
    let state = with(generator, |g| {
        let now = *g;
        g.drawn += n as u64;
        now
    });
    let state = match state {
        Ok(state) => state,
        Err(code) => return code,
    };
    let code = api(|driver| {
        let key = driver.stream_key(state.stream as Handle)?;
        let work = Work::new(WorkKind::Library, move |driver| {
            let host = driver.memory.host(to, n * size_of::<T>(), true)?.cast::<T>();
            for i in 0..n {
                // Each number depends on seed and position only, so that a replay draws the same again.
                let mut rng = Rng::new(state.seed ^ (state.drawn + i as u64).wrapping_mul(0xd134_2543_de82_ef95));
                let value = draw(rng.draw(), rng.draw());
                // SAFETY: `host` has checked room for `n` values.
                unsafe { host.add(i).write_unaligned(value) };
            }
            Ok(())
        });
        driver.enqueue(key, work)
    });
    if code == 0 { 0 } else { LAUNCH_FAILURE }
}

/// In (0, 1], as cuRAND has it.
fn uniform(bits: u64) -> f64 {
    ((bits >> 11) + 1) as f64 / (1u64 << 53) as f64
}

fn normal(a: u64, b: u64) -> f64 {
    (-2. * uniform(a).ln()).sqrt() * (std::f64::consts::TAU * uniform(b)).cos()
}

#[unsafe(no_mangle)]
pub extern "C" fn curandGenerate(generator: Handle, to: u64, n: usize) -> i32 {
    fill(generator, to, n, |a, _| a as u32)
}

#[unsafe(no_mangle)]
pub extern "C" fn curandGenerateLongLong(generator: Handle, to: u64, n: usize) -> i32 {
    fill(generator, to, n, |a, _| a)
}

#[unsafe(no_mangle)]
pub extern "C" fn curandGenerateUniform(generator: Handle, to: u64, n: usize) -> i32 {
    fill(generator, to, n, |a, _| ((a >> 40) + 1) as f32 / (1u32 << 24) as f32)
}

#[unsafe(no_mangle)]
pub extern "C" fn curandGenerateUniformDouble(generator: Handle, to: u64, n: usize) -> i32 {
    fill(generator, to, n, |a, _| uniform(a))
}

#[unsafe(no_mangle)]
pub extern "C" fn curandGenerateNormal(generator: Handle, to: u64, n: usize, mean: f32, deviation: f32) -> i32 {
    fill(generator, to, n, move |a, b| mean + deviation * normal(a, b) as f32)
}

#[unsafe(no_mangle)]
pub extern "C" fn curandGenerateNormalDouble(generator: Handle, to: u64, n: usize, mean: f64, deviation: f64) -> i32 {
    fill(generator, to, n, move |a, b| mean + deviation * normal(a, b))
}

#[unsafe(no_mangle)]
pub extern "C" fn curandGenerateLogNormal(generator: Handle, to: u64, n: usize, mean: f32, deviation: f32) -> i32 {
    fill(generator, to, n, move |a, b| (mean + deviation * normal(a, b) as f32).exp())
}

#[unsafe(no_mangle)]
pub extern "C" fn curandGenerateLogNormalDouble(generator: Handle, to: u64, n: usize, mean: f64, deviation: f64) -> i32 {
    fill(generator, to, n, move |a, b| (mean + deviation * normal(a, b)).exp())
}
