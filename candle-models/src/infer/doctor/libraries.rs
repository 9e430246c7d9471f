//! The CUDA libraries that a program finds when it starts, and their versions.

use libloading::Library as Loaded;
use serde::Serialize;
use std::ffi::c_int;

/// How a library tells its version.
#[derive(Clone, Copy)]
enum Version {
    /// A function of one integer: 1000 times the major and 10 times the minor version.
    Thousands(&'static str),
    /// A function of one integer: 10000 times the major, 100 times the minor version, and the patch.
    TenThousands(&'static str),
    /// A function of two integers.
    Pair(&'static str),
    /// A function of a property's number and an integer: major, minor and patch are 0, 1 and 2.
    Property(&'static str),
}

/// A library that CUDA programs of ours are linked to, or can use.
struct Known {
    name: &'static str,
    file: &'static str,
    version: Version,
    /// Whether a CUDA build does not start without it.
    needed: bool,
}

const KNOWN: [Known; 7] = [
    Known { name: "CUDA runtime", file: "libcudart.so.13", version: Version::Thousands("cudaRuntimeGetVersion"), needed: true },
    Known { name: "cuBLAS", file: "libcublas.so.13", version: Version::Property("cublasGetProperty"), needed: true },
    Known { name: "cuBLASLt", file: "libcublasLt.so.13", version: Version::Property("cublasLtGetProperty"), needed: true },
    Known { name: "cuFFT", file: "libcufft.so.12", version: Version::Property("cufftGetProperty"), needed: false },
    Known { name: "cuRAND", file: "libcurand.so.10", version: Version::Property("curandGetProperty"), needed: true },
    Known { name: "NVRTC", file: "libnvrtc.so.13", version: Version::Pair("nvrtcVersion"), needed: true },
    Known { name: "NCCL", file: "libnccl.so.2", version: Version::TenThousands("ncclGetVersion"), needed: false },
];

/// A library as it was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Library {
    pub name: &'static str,
    /// The file that was looked for.
    pub file: &'static str,
    pub found: bool,
    /// `13.1.0`; `None` where it does not say.
    pub version: Option<String>,
    /// Whether a CUDA build does not start without it.
    pub needed: bool,
}

/// Looks for all of them, where the system's loader does.
pub fn detect() -> Vec<Library> {
    let detect = |known: &Known| {
        // SAFETY: loading such a library runs its initialisers, which any CUDA program runs.
        let loaded = unsafe { Loaded::new(known.file) }.ok();
        let version = loaded.as_ref().and_then(|loaded| version(loaded, known.version));
        Library { name: known.name, file: known.file, found: loaded.is_some(), version, needed: known.needed }
    };
    KNOWN.iter().map(detect).collect()
}

fn version(library: &Loaded, how: Version) -> Option<String> {
    type One = unsafe extern "C" fn(*mut c_int) -> c_int;
    type Two = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
    type Property = unsafe extern "C" fn(c_int, *mut c_int) -> c_int;
    let (mut a, mut b) = (0, 0);
    match how {
        Version::Thousands(name) => {
            // SAFETY: the function's type as its header declares it.
            let status = unsafe { library.get::<One>(name).ok()?(&mut a) };
            (status == 0).then(|| format!("{}.{}", a / 1000, a % 1000 / 10))
        }
        Version::TenThousands(name) => {
            // SAFETY: as above.
            let status = unsafe { library.get::<One>(name).ok()?(&mut a) };
            (status == 0).then(|| format!("{}.{}.{}", a / 10_000, a % 10_000 / 100, a % 100))
        }
        Version::Pair(name) => {
            // SAFETY: as above.
            let status = unsafe { library.get::<Two>(name).ok()?(&mut a, &mut b) };
            (status == 0).then(|| format!("{a}.{b}"))
        }
        Version::Property(name) => {
            // SAFETY: as above; the property is an enumeration of three.
            let function = unsafe { library.get::<Property>(name).ok()? };
            let part = |number: c_int| {
                let mut value = 0;
                // SAFETY: as above.
                (unsafe { function(number, &mut value) } == 0).then_some(value)
            };
            Some(format!("{}.{}.{}", part(0)?, part(1)?, part(2)?))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_library_is_listed_found_or_not() {
        let found = detect();
        assert_eq!(found.len(), KNOWN.len());
        assert!(found.iter().all(|library| library.found || library.version.is_none()), "{found:?}");
    }
}
