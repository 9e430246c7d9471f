//! From CUDA source to PTX: NVRTC, with a cache on disk.

use crate::files::write_atomic;
use crate::hex;
use candle_core::Result;
use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::nvrtc::{CompileError, CompileOptions, Ptx, compile_ptx_with_opts, sys};
use sha2::{Digest, Sha256};
use std::path::PathBuf;

/// The variable that names the directory for compiled kernels; empty for none.
pub const CACHE_VARIABLE: &str = "CANDLE_KERNEL_CACHE";

/// Architectures that NVRTC is asked for, ascending: a GPU takes the highest that is not above its own.
const ARCHITECTURES: [u32; 6] = [80, 86, 89, 90, 100, 120];

/// Compiles for one architecture.
#[derive(Debug)]
pub(super) struct Compiler {
    architecture: u32,
    version: (i32, i32),
    cache: Option<PathBuf>,
}

impl Compiler {
    /// For a GPU of that compute capability (90 for 9.0).
    pub fn new(capability: u32) -> Self {
        let architecture = ARCHITECTURES.into_iter().rfind(|a| *a <= capability).unwrap_or(ARCHITECTURES[0]);
        Self { architecture, version: version(), cache: cache() }
    }

    /// The PTX of a source. A cached one is used if it is whole; whatever is wrong with the cache costs only time.
    pub fn compile(&self, name: &str, source: &str) -> Result<Ptx> {
        let options = self.options();
        let key = hash(&[&options.join(" "), &format!("{:?}", self.version), source]);
        let path = self.cache.as_ref().map(|dir| dir.join(format!("{name}-{}.ptx", &key[..32])));
        if let Some(text) =
            path.as_ref().and_then(|path| std::fs::read_to_string(path).ok()).and_then(|text| verified(&text).map(str::to_owned))
        {
            return Ok(Ptx::from_src(text));
        }
        let compiled = compile_ptx_with_opts(source, CompileOptions { name: Some(format!("{name}.cu")), options, ..Default::default() });
        let text = compiled.map_err(|error| readable(name, error)).w()?.to_src();
        // NVRTC counts the terminating zero.
        let text = text.trim_end_matches('\0');
        if let Some(path) = path {
            // A full or read-only disk costs the next start its time, nothing else.
            let _ = path.parent().map(std::fs::create_dir_all);
            let _ = write_atomic(&path, sealed(text).as_bytes());
        }
        Ok(Ptx::from_src(text))
    }

    /// `ex2.approx` and the like are asked for where they are wanted, by name: no fast-math flag for the rest.
    fn options(&self) -> Vec<String> {
        vec![
            format!("--gpu-architecture=compute_{}", self.architecture),
            "--std=c++17".to_owned(),
            "--device-as-default-execution-space".to_owned(),
        ]
    }
}

/// Only the log, which names the line; not the whole state of the program.
fn readable(name: &str, error: CompileError) -> CompileError {
    if let CompileError::CompileError { log, .. } = &error {
        eprintln!("kernel {name}: {}", log.to_string_lossy());
    }
    error
}

fn version() -> (i32, i32) {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both point at integers.
    let _ = unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
    (major, minor)
}

fn cache() -> Option<PathBuf> {
    let of = |variable| std::env::var_os(variable).filter(|v| !v.is_empty()).map(PathBuf::from);
    match std::env::var_os(CACHE_VARIABLE) {
        Some(dir) if dir.is_empty() => None,
        Some(dir) => Some(dir.into()),
        None => of("XDG_CACHE_HOME").or_else(|| Some(of("HOME")?.join(".cache"))).map(|dir| dir.join("candle-models").join("kernels")),
    }
}

fn hash(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hex(hash.finalize())
}

const SEAL: &str = "// sha256 ";

/// The text behind a line with its hash.
fn sealed(text: &str) -> String {
    format!("{SEAL}{}\n{text}", hash(&[text]))
}

/// The text, if it is the one that was sealed.
fn verified(sealed: &str) -> Option<&str> {
    let (found, text) = sealed.strip_prefix(SEAL)?.split_once('\n')?;
    (found == hash(&[text])).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_cache_is_not_believed() {
        let sealed = sealed(".version 9.0\n.target sm_80\n");
        assert_eq!(verified(&sealed), Some(".version 9.0\n.target sm_80\n"));
        for (i, _) in sealed.char_indices() {
            let mut damaged = sealed.clone().into_bytes();
            damaged[i] ^= 1;
            assert_eq!(verified(&String::from_utf8(damaged).unwrap()), None, "byte {i}");
            assert_eq!(verified(&sealed[..i]), None, "cut at {i}");
        }
    }

    #[test]
    fn a_gpu_takes_the_highest_architecture_not_above_its_own() {
        for (capability, architecture) in [(80, 80), (87, 86), (89, 89), (90, 90), (103, 100), (121, 120)] {
            assert_eq!(Compiler::new(capability).architecture, architecture);
        }
    }
}
