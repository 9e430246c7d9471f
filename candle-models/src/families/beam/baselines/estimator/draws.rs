//! Random numbers one after the other, many at a time.

use crate::random::Random;

pub(super) struct Draws {
    streams: [Random; 2],
    next: [u64; 2],
    numbers: [Vec<f32>; 2],
}

impl Draws {
    pub fn new(random: Random) -> Self {
        Self { streams: ["uniform", "normal"].map(|name| random.stream(name)), next: [0; 2], numbers: Default::default() }
    }

    /// The next uniform and normal numbers, so many of each.
    pub fn take(&mut self, counts: [usize; 2]) -> [&mut [f32]; 2] {
        let fills: [fn(Random, u64, &mut [f32]); 2] = [Random::fill_uniform, Random::fill_normal];
        for (i, fill) in fills.into_iter().enumerate() {
            self.numbers[i].resize(counts[i], 0.0);
            fill(self.streams[i], self.next[i], &mut self.numbers[i]);
            self.next[i] += counts[i] as u64;
        }
        let [uniform, normal] = &mut self.numbers;
        [uniform, normal]
    }
}
