//! The paths whose instructions are counted.

use crate::calls::{EngineCalls, Inputs, STREAM_FRAMES};
use crate::case::Pass;
use crate::family::Families;
use crate::harness::Subject;
use crate::network::{Network, Place};
use anyhow::{Context, Result, ensure};
use std::path::Path;

/// The function in which instructions count, by a part of its name.
pub(super) const COUNTED: &str = "instructions::paths::counted";
/// Frames of a window pass: one second.
const WINDOW: usize = 60;
/// Calls before those that count: the first ones allocate.
const WARM_UP: usize = 2;

/// What makes one call of a path.
pub type Calls = Box<dyn FnMut() -> Result<()>>;

/// What is counted, on fixed inputs and one thread.
#[derive(Debug, Clone, Copy)]
pub struct HotPath {
    /// As it stands in the table, `mamba-step-q8`.
    pub name: &'static str,
    /// Calls that are counted together.
    pub calls: u64,
    /// Makes the calls, with a folder for what they read. The repository is the current directory.
    pub work: fn(&Path) -> Result<Calls>,
}

impl HotPath {
    /// A path of one call.
    pub fn once(name: &'static str, work: fn(&Path) -> Result<Calls>) -> Self {
        Self { name, calls: 1, work }
    }

    /// Steps of a network: every frame of the inputs once, for the draws of classes take other ways in each.
    pub fn steps(name: &'static str, work: fn(&Path) -> Result<Calls>) -> Self {
        Self { name, calls: STREAM_FRAMES as u64, work }
    }

    /// Makes the path's calls, of which only the last ones count. The repository is the current directory.
    ///
    /// # Errors
    /// If the calls cannot be made on this machine, or fail.
    pub fn run(self) -> Result<()> {
        #[cfg(target_arch = "x86_64")]
        ensure!(std::arch::is_x86_feature_detected!("avx2"), "this machine has no AVX2, whose kernels are counted");
        // Threads of a pool would not be counted, and waiting ones would be: this thread is the pool.
        rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build_global()?;
        let scratch = tempfile::tempdir().context("no directory for the weights")?;
        let mut work = (self.work)(scratch.path())?;
        (0..WARM_UP).try_for_each(|_| work())?;
        (0..self.calls).try_for_each(|_| counted(&mut *work))
    }
}

/// The paths of all families.
pub fn paths(families: &Families) -> Vec<HotPath> {
    families.iter().flat_map(|family| family.paths()).collect()
}

/// Passes of a network through the engine: steps of one frame, or windows of a second.
///
/// # Errors
/// If the network cannot be stored in the dtype or loaded.
pub fn engine_calls(network: &Network, dtype: &str, pass: Pass, scratch: &Path) -> Result<Calls> {
    let network = network.stored(dtype, scratch)?;
    let case = network.case(pass, 1, if pass == Pass::Step { 1 } else { WINDOW }, 1);
    let model = network.load()?;
    let inputs = Inputs::random(&*model, &case);
    let mut calls = EngineCalls::new(model, &case, &inputs, &Place::cpu())?;
    Ok(Box::new(move || calls.run()))
}

/// One call that counts. The name is what callgrind looks for, so it must stay a function of its own.
#[inline(never)]
fn counted(work: &mut dyn FnMut() -> Result<()>) -> Result<()> {
    work()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_has_a_name_of_its_own() {
        let paths = paths(&crate::families::shipped());
        let names: std::collections::BTreeSet<_> = paths.iter().map(|path| path.name).collect();
        assert_eq!(names.len(), paths.len());
        assert!(names.contains("mamba-step-q8") && names.contains("training-step"), "{names:?}");
    }

    #[test]
    fn callgrind_finds_the_counted_function_by_its_name() {
        assert!(std::any::type_name_of_val(&counted).ends_with(COUNTED), "{}", std::any::type_name_of_val(&counted));
    }
}
