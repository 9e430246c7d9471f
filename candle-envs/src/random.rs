//! The generator of Gymnasium's environments: NumPy's `PCG64`, seeded by its `SeedSequence`, bit for bit.
//!
//! PCG XSL RR 128/64 is by O'Neill, "PCG: A family of simple fast space-efficient statistically good algorithms for random number
//! generation", 2014; the seeding is NumPy's.

use serde::{Deserialize, Serialize};

/// NumPy's `Generator(PCG64(seed))`, as `gymnasium.utils.seeding.np_random` makes it.
///
/// ```
/// let mut random = candle_envs::Pcg64::new(42);
/// assert_eq!(random.clone().next_u64(), 0xc621_fbcd_16d9_2688);
/// assert!((random.uniform(-0.05, 0.05) - 0.0273956048556).abs() < 1e-12); // where CartPole begins
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pcg64 {
    /// High and low words: JSON has no numbers of 128 bits that every reader takes.
    state: [u64; 2],
    increment: [u64; 2],
    /// The upper half of a number of which the lower one has been used.
    half: Option<u32>,
}

impl Default for Pcg64 {
    fn default() -> Self {
        Self::new(0)
    }
}

const MULTIPLIER: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;

impl Pcg64 {
    /// The generator of a seed.
    pub fn new(seed: u64) -> Self {
        let [v0, v1, v2, v3] = seed_sequence(seed);
        let increment = wide([v2, v3]) << 1 | 1;
        let mut new = Self { state: [0; 2], increment: narrow(increment), half: None };
        new.advance();
        new.state = narrow(wide(new.state).wrapping_add(wide([v0, v1])));
        new.advance();
        new
    }

    fn advance(&mut self) -> u128 {
        let state = wide(self.state).wrapping_mul(MULTIPLIER).wrapping_add(wide(self.increment));
        self.state = narrow(state);
        state
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let state = self.advance();
        ((state >> 64) as u64 ^ state as u64).rotate_right((state >> 122) as u32)
    }

    /// 32 random bits: halves of 64, the lower one first.
    pub fn next_u32(&mut self) -> u32 {
        if let Some(half) = self.half.take() {
            return half;
        }
        let bits = self.next_u64();
        self.half = Some((bits >> 32) as u32);
        bits as u32
    }

    /// A number in `[0, 1)` with 53 random bits: `Generator.random()`.
    pub fn double(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0)
    }

    /// A number in `[low, high)`: `Generator.uniform(low, high)`.
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.double()
    }

    /// A number below `n`, which is at least 1: `Generator.integers(n)`, by Lemire's method on 32 bits.
    pub fn below(&mut self, n: u32) -> u32 {
        if n <= 1 {
            return 0;
        }
        let mut product = u64::from(self.next_u32()) * u64::from(n);
        if (product as u32) < n {
            let threshold = n.wrapping_neg() % n;
            while (product as u32) < threshold {
                product = u64::from(self.next_u32()) * u64::from(n);
            }
        }
        (product >> 32) as u32
    }
}

fn wide([high, low]: [u64; 2]) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

fn narrow(x: u128) -> [u64; 2] {
    [(x >> 64) as u64, x as u64]
}

/// NumPy's `SeedSequence(seed).generate_state(4, uint64)`.
fn seed_sequence(seed: u64) -> [u64; 4] {
    let mut constant = 0x43b0_d7e5u32;
    let mut hash = |value: u32| {
        let value = value ^ constant;
        constant = constant.wrapping_mul(0x931e_8875);
        let value = value.wrapping_mul(constant);
        value ^ value >> 16
    };
    let mix = |x: u32, y: u32| {
        let mixed = x.wrapping_mul(0xca01_f9dd).wrapping_sub(y.wrapping_mul(0x4973_f715));
        mixed ^ mixed >> 16
    };
    let mut pool = [seed as u32, (seed >> 32) as u32, 0, 0].map(&mut hash);
    for source in 0..4 {
        for target in (0..4).filter(|target| *target != source) {
            pool[target] = mix(pool[target], hash(pool[source]));
        }
    }
    let mut constant = 0x8b51_f9ddu32;
    let words: [u32; 8] = std::array::from_fn(|i| {
        let value = pool[i % 4] ^ constant;
        constant = constant.wrapping_mul(0x58f3_8ded);
        let value = value.wrapping_mul(constant);
        value ^ value >> 16
    });
    std::array::from_fn(|i| u64::from(words[2 * i + 1]) << 32 | u64::from(words[2 * i]))
}
