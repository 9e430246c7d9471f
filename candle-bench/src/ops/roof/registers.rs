//! Arithmetic in registers, which no product exceeds.

use crate::formulas;
use crate::harness::{self, Settings, Subject, Timed};
use crate::ops::Weights;
use anyhow::Result;
use pulp::{Arch, Simd, WithSimd};
use rayon::ThreadPool;

/// Sums of a thread, and turns of a call: some 10 us.
const SUMS: usize = 12;
const TURNS: usize = 1 << 14;

/// The most operations a second in products with such weights: of all instructions that the processor has for them, the fastest.
pub fn fastest_product(pool: &ThreadPool, weights: Weights, settings: &Settings) -> Result<f64> {
    let mut best = f64::NEG_INFINITY;
    for instruction in Instruction::of(weights) {
        let measured = pool.install(|| harness::measure(&mut Timed(instruction), settings))?;
        let flop = instruction.flop() * (SUMS * instruction.turns() * pool.current_num_threads()) as f64;
        best = best.max(formulas::gflop_per_s(flop, measured.latency_us.p50));
    }
    Ok(best)
}

/// What multiplies and adds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Instruction {
    /// Multiply-adds of f32, which weights of any kind can be widened for.
    Floats,
    /// Dot products of pairs of bf16 with sums in f32 (AVX-512).
    #[cfg(target_arch = "x86_64")]
    Bf16,
    /// Dot products of four bytes (VNNI): two of them for activations of 16 bits.
    #[cfg(target_arch = "x86_64")]
    Bytes,
    /// Multiply-adds of pairs of 16-bit integers and the sum of these (AVX2).
    #[cfg(target_arch = "x86_64")]
    Words,
    /// Products of tiles of bf16 with sums in f32 (AMX).
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    TilesOfBf16,
    /// Products of tiles of bytes (AMX): two of them for activations of 16 bits.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    TilesOfBytes,
}

impl Instruction {
    /// Those that this processor has.
    fn of(weights: Weights) -> Vec<Self> {
        let mut all = vec![Self::Floats];
        #[cfg(target_arch = "x86_64")]
        all.extend(match weights {
            Weights::F32 => None,
            Weights::Bf16 => std::arch::is_x86_feature_detected!("avx512bf16").then_some(Self::Bf16),
            Weights::Q8 if std::arch::is_x86_feature_detected!("avx512vnni") => Some(Self::Bytes),
            Weights::Q8 => std::arch::is_x86_feature_detected!("avx2").then_some(Self::Words),
        });
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        if candle_models::device::simd_available().contains(&"amx") {
            all.extend(match weights {
                Weights::F32 => None,
                Weights::Bf16 => Some(Self::TilesOfBf16),
                Weights::Q8 => Some(Self::TilesOfBytes),
            });
        }
        let _ = weights;
        all
    }

    /// Turns of a call. A product of tiles takes as long as 16 to 32 of the others.
    fn turns(self) -> usize {
        match self {
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Self::TilesOfBf16 | Self::TilesOfBytes => TURNS / 32,
            _ => TURNS,
        }
    }

    /// Operations of one of them in a product.
    fn flop(self) -> f64 {
        match self {
            Self::Floats => 2.0 * Arch::new().dispatch(Lanes) as f64,
            #[cfg(target_arch = "x86_64")]
            Self::Bf16 | Self::Bytes => 64.0,
            #[cfg(target_arch = "x86_64")]
            Self::Words => 32.0,
            // 16 rows of 32 values by 32 rows of 16; of bytes twice as many, in two halves.
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Self::TilesOfBf16 | Self::TilesOfBytes => 2.0 * 16.0 * 32.0 * 16.0,
        }
    }

    fn run(self) {
        match self {
            Self::Floats => _ = std::hint::black_box(Arch::new().dispatch(InRegisters::of_unknown())),
            // SAFETY: this is made only where the processor has the instruction.
            #[cfg(target_arch = "x86_64")]
            Self::Bf16 => _ = std::hint::black_box(unsafe { x86::halves() }),
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Self::Bytes => _ = std::hint::black_box(unsafe { x86::bytes() }),
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Self::Words => _ = std::hint::black_box(unsafe { x86::words() }),
            // SAFETY: as above, and Linux lets the process use the tiles.
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Self::TilesOfBf16 => unsafe { tiles::halves(self.turns()) },
            // SAFETY: as above.
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Self::TilesOfBytes => unsafe { tiles::bytes(self.turns()) },
        }
    }
}

impl Subject for Instruction {
    fn run(&mut self) -> Result<()> {
        rayon::broadcast(|_| (*self).run());
        Ok(())
    }
}

/// Values of a register.
pub struct Lanes;

impl WithSimd for Lanes {
    type Output = usize;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> usize {
        S::F32_LANES
    }
}

/// `x = a x + b`, over and over. The compiler must know nothing of these numbers: of sums that are equal it computes one.
struct InRegisters {
    a: f32,
    b: f32,
    starts: [f32; SUMS],
}

impl InRegisters {
    fn of_unknown() -> Self {
        std::hint::black_box(Self { a: 0.999, b: 1e-3, starts: std::array::from_fn(|i| 1.0 + i as f32) })
    }
}

impl WithSimd for InRegisters {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f32 {
        let (a, b) = (simd.splat_f32s(self.a), simd.splat_f32s(self.b));
        let mut sums = self.starts.map(|start| simd.splat_f32s(start));
        for _ in 0..TURNS {
            for sum in &mut sums {
                *sum = simd.mul_add_f32s(a, *sum, b);
            }
        }
        sums.into_iter().map(|sum| simd.reduce_sum_f32s(sum)).sum()
    }
}

/// Sums of dot products whose factors the compiler knows nothing of.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{SUMS, TURNS};
    use std::arch::x86_64::*;
    use std::hint::black_box;

    /// Integers that differ, so that no sum is another's.
    fn starts() -> [i32; SUMS] {
        black_box(std::array::from_fn(|i| i as i32))
    }

    #[target_feature(enable = "avx512f,avx512bf16")]
    pub fn halves() -> f32 {
        // SAFETY: both are 64 bytes, and any bits are bf16: twice 0.5.
        let factor: __m512bh = unsafe { std::mem::transmute(_mm512_set1_epi32(black_box(0x3f00_3f00))) };
        let mut sums = starts().map(|start| _mm512_set1_ps(start as f32));
        for _ in 0..TURNS {
            for sum in &mut sums {
                *sum = _mm512_dpbf16_ps(*sum, factor, factor);
            }
        }
        sums.into_iter().map(|sum| _mm512_reduce_add_ps(sum)).sum()
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    pub fn bytes() -> i32 {
        let factor = _mm512_set1_epi32(black_box(0x0102_0304));
        let mut sums = starts().map(|start| _mm512_set1_epi32(start));
        for _ in 0..TURNS {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, factor, factor);
            }
        }
        sums.into_iter().map(|sum| _mm512_reduce_add_epi32(sum)).fold(0, i32::wrapping_add)
    }

    #[target_feature(enable = "avx2")]
    pub fn words() -> i32 {
        let factor = _mm256_set1_epi32(black_box(0x0001_0002));
        let mut sums = starts().map(|start| _mm256_set1_epi32(start));
        for turn in 0..TURNS {
            // Of factors that stay the same it would multiply once.
            let other = _mm256_set1_epi32(turn as i32);
            for sum in &mut sums {
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(_mm256_xor_si256(*sum, other), factor));
            }
        }
        let mut lanes = [0i32; 8];
        sums.into_iter().fold(0, |total, sum| {
            // SAFETY: eight integers are 32 bytes.
            unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), sum) };
            lanes.iter().fold(total, |total, lane| total.wrapping_add(*lane))
        })
    }
}

/// Products of tiles of zeros, four of which are on their way at a time.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod tiles {
    use std::arch::asm;

    #[repr(C, align(64))]
    struct Configuration {
        palette: u8,
        start_row: u8,
        reserved: [u8; 14],
        line_bytes: [u16; 16],
        lines: [u8; 16],
    }

    macro_rules! products {
        ($name:ident, $instruction:literal) => {
            /// # Safety
            /// The processor has the instruction, and Linux lets the process use the tiles.
            pub unsafe fn $name(turns: usize) {
                let mut configuration = Configuration { palette: 1, start_row: 0, reserved: [0; 14], line_bytes: [0; 16], lines: [0; 16] };
                configuration.line_bytes[..8].fill(64);
                configuration.lines[..8].fill(16);
                // SAFETY: the caller's promise; reads 64 bytes and leaves no tiles behind. As many products a turn as there are sums elsewhere.
                unsafe {
                    asm!(
                        "ldtilecfg [{configuration}]",
                        "2:",
                        concat!($instruction, " tmm0, tmm4, tmm6\n", $instruction, " tmm1, tmm4, tmm7\n"),
                        concat!($instruction, " tmm2, tmm5, tmm6\n", $instruction, " tmm3, tmm5, tmm7\n"),
                        concat!($instruction, " tmm0, tmm4, tmm6\n", $instruction, " tmm1, tmm4, tmm7\n"),
                        concat!($instruction, " tmm2, tmm5, tmm6\n", $instruction, " tmm3, tmm5, tmm7\n"),
                        concat!($instruction, " tmm0, tmm4, tmm6\n", $instruction, " tmm1, tmm4, tmm7\n"),
                        concat!($instruction, " tmm2, tmm5, tmm6\n", $instruction, " tmm3, tmm5, tmm7\n"),
                        "dec {turns}",
                        "jnz 2b",
                        "tilerelease",
                        configuration = in(reg) &configuration,
                        turns = inout(reg) turns => _,
                        options(nostack, readonly),
                    );
                }
            }
        };
    }

    products!(halves, "tdpbf16ps");
    products!(bytes, "tdpbsud");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_runs_and_weights_of_any_kind_can_be_widened() {
        for weights in Weights::ALL {
            let all = Instruction::of(weights);
            assert_eq!(all[0], Instruction::Floats);
            for instruction in all {
                instruction.run();
                assert!(instruction.flop() >= 2.0, "{instruction:?}");
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn sums_are_those_of_their_instructions() {
        let turns = TURNS as i32;
        let starts: i32 = (0..SUMS as i32).sum();
        if Instruction::of(Weights::Bf16).contains(&Instruction::Bf16) {
            // Twice 0.25 a turn.
            // SAFETY: the processor has the instruction.
            let found = unsafe { x86::halves() };
            assert_eq!(found, 16.0 * (starts as f32 + SUMS as f32 * 0.5 * TURNS as f32));
        }
        if Instruction::of(Weights::Q8).contains(&Instruction::Bytes) {
            // SAFETY: the processor has the instruction.
            let found = unsafe { x86::bytes() };
            assert_eq!(found, 16 * (starts + SUMS as i32 * (1 + 4 + 9 + 16) * turns));
        }
    }
}
