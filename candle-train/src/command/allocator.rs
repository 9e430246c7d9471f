//! How mimalloc, the allocator of our programs, treats large blocks that are freed.

use std::ffi::{c_int, c_long};

// The symbols are in mimalloc's library, which is linked where its crate is used.
use mimalloc as _;

unsafe extern "C" {
    fn mi_option_set_default(option: c_int, value: c_long);
}

/// `mi_option_purge_delay` of mimalloc.h: after how many milliseconds freed pages go back to the system. [`NEVER`] is for not at all.
const PURGE_DELAY: c_int = 15;
const NEVER: c_long = -1;

/// Has mimalloc keep freed memory for what is allocated next, unless the environment says otherwise (`MIMALLOC_PURGE_DELAY`, in milliseconds). Candle
/// allocates a buffer for every result and frees it within the step: by default mimalloc gives such pages back after a second, and mapping and clearing
/// them again took a tenth to a third of a training step on a virtual machine. [`run`](super::run) calls it; in a program with another allocator it changes nothing.
pub fn keep_freed_memory() {
    // SAFETY: sets a number of the allocator's, which any thread may do at any time.
    unsafe { mi_option_set_default(PURGE_DELAY, NEVER) };
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" {
        fn mi_option_get(option: c_int) -> c_long;
    }

    #[test]
    fn the_delay_of_a_second_is_the_one_that_becomes_never() {
        // SAFETY: reads a number of the allocator's.
        let delay = || unsafe { mi_option_get(PURGE_DELAY) };
        let asked = std::env::var("MIMALLOC_PURGE_DELAY").ok().and_then(|value| value.parse().ok());
        assert_eq!(delay(), asked.unwrap_or(1000), "mimalloc's options are numbered otherwise");
        keep_freed_memory();
        assert_eq!(delay(), asked.unwrap_or(NEVER));
    }
}
