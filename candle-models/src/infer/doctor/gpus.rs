//! What a bundle can expect of a GPU, by arithmetic from the datasheet. Nothing here was measured.

use serde::Serialize;

/// A GPU by its datasheet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Datasheet {
    pub name: &'static str,
    /// Gigabytes of memory.
    memory_gb: f64,
    /// Gigabytes a second from memory.
    gb_per_s: f64,
    /// Tera-operations a second of dense bf16 products with f32 sums.
    bf16_tflop_per_s: f64,
    multiprocessors: u32,
}

/// NVIDIA's datasheets and architecture papers, SXM boards where there are several.
const DATASHEETS: [Datasheet; 7] = [
    Datasheet { name: "RTX 3090", memory_gb: 24.0, gb_per_s: 936.0, bf16_tflop_per_s: 71.0, multiprocessors: 82 },
    Datasheet { name: "RTX 4090", memory_gb: 24.0, gb_per_s: 1008.0, bf16_tflop_per_s: 165.2, multiprocessors: 128 },
    Datasheet { name: "RTX 5090", memory_gb: 32.0, gb_per_s: 1792.0, bf16_tflop_per_s: 209.5, multiprocessors: 170 },
    Datasheet { name: "A100 40 GB", memory_gb: 40.0, gb_per_s: 1555.0, bf16_tflop_per_s: 312.0, multiprocessors: 108 },
    Datasheet { name: "A100 80 GB", memory_gb: 80.0, gb_per_s: 2039.0, bf16_tflop_per_s: 312.0, multiprocessors: 108 },
    Datasheet { name: "H100 80 GB", memory_gb: 80.0, gb_per_s: 3350.0, bf16_tflop_per_s: 989.4, multiprocessors: 132 },
    Datasheet { name: "H200 141 GB", memory_gb: 141.0, gb_per_s: 4800.0, bf16_tflop_per_s: 989.4, multiprocessors: 132 },
];

/// What of a bundle the arithmetic needs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Footprint {
    /// Bytes of all parameters, matrices in bf16 and the rest in f32.
    pub weight_bytes: u64,
    /// Multiply-adds of a row in a frame.
    pub products: u64,
    /// Bytes of a session's state, in f32.
    pub state_bytes: u64,
    /// Bytes of a frame's inputs and outputs.
    pub frame_bytes: u64,
    /// Bytes that the outputs of the linear layers take for a row of a window, in f32.
    pub activation_bytes: u64,
    /// Outputs of the widest linear layer.
    pub widest: u64,
}

/// How to load a GPU with a bundle.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Recommendation {
    pub gpu: &'static str,
    /// Sessions in a batch of streaming steps.
    pub step_batch: u64,
    /// Sequences of a window pass.
    pub sequences: u64,
    /// Frames of each.
    pub window: u64,
    /// Sessions whose state fits into memory, in powers of two.
    pub sessions: u64,
}

/// Microseconds that the GPU's part of a step may take by this arithmetic: it leaves the rest of the 80 us that a step of
/// 32 sessions is allowed for launches, copies and the host.
const STEP_US: f64 = 50.0;
/// The engine's largest batch.
const LARGEST_BATCH: u64 = 512;
/// Frames of a window: about a second of a game at 60 Hz, in whole tiles.
const WINDOW: u64 = 64;
/// Rows and columns of the tile that a multiprocessor computes of a large product.
const TILE: u64 = 128;

impl Datasheet {
    /// Derived in this way:
    ///
    /// - **Step batch**: a step of `B` sessions reads the weights once, reads and writes every session's state, and moves
    ///   its inputs and outputs: `W + B (2 S + F)` bytes at the memory's rate; it multiplies `2 P B` operations at the
    ///   rate of bf16 products. The larger of the two times is the step's; the batch is the largest power of two up to 512
    ///   that keeps it below 50 us. Launches and caches are left out.
    /// - **Window pass**: a product of `R` rows and `N` columns gives `R N / 128^2` tiles, and with fewer tiles than
    ///   multiprocessors some of them idle. The rows are those that give the widest layer a tile for each, in sequences of
    ///   64 frames, a power of two of them; as many as leave half of the memory free with all activations kept for a
    ///   gradient.
    /// - **Sessions**: nine tenths of the memory less the weights, over a session's state.
    pub fn recommend(&self, f: &Footprint) -> Recommendation {
        let memory = 1e9 * self.memory_gb;
        let step_us = |batch: u64| {
            let bytes = f.weight_bytes as f64 + batch as f64 * (2 * f.state_bytes + f.frame_bytes) as f64;
            let operations = 2.0 * f.products as f64 * batch as f64;
            f64::max(bytes / self.gb_per_s / 1e3, operations / self.bf16_tflop_per_s / 1e6)
        };
        let step_batch = powers_of_two(LARGEST_BATCH).take_while(|&batch| step_us(batch) <= STEP_US).last().unwrap_or(1);
        let rows = u64::from(self.multiprocessors) * TILE * TILE / f.widest.max(1);
        let kept = |sequences: u64| (sequences * WINDOW * f.activation_bytes) as f64 <= memory / 2.0;
        let filling = rows.div_ceil(WINDOW).next_power_of_two();
        let sequences = powers_of_two(filling).take_while(|&n| kept(n)).last().unwrap_or(1);
        let room = (0.9 * memory - f.weight_bytes as f64).max(0.0) / f.state_bytes.max(f.frame_bytes).max(1) as f64;
        let sessions = powers_of_two(1 << 40).take_while(|&n| n as f64 <= room).last().unwrap_or(0);
        Recommendation { gpu: self.name, step_batch, sequences, window: WINDOW, sessions }
    }
}

/// 1, 2, 4 and so on to `largest`.
fn powers_of_two(largest: u64) -> impl Iterator<Item = u64> {
    (0..63).map(|i| 1 << i).take_while(move |&n| n <= largest)
}

/// For every GPU of the table.
pub fn recommend(footprint: &Footprint) -> Vec<Recommendation> {
    DATASHEETS.iter().map(|gpu| gpu.recommend(footprint)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Footprint = Footprint {
        weight_bytes: 2_000_000,
        products: 1_000_000,
        state_bytes: 80_000,
        frame_bytes: 2_000,
        activation_bytes: 20_000,
        widest: 512,
    };

    #[test]
    fn a_step_of_the_recommended_batch_takes_its_time_and_no_more() {
        // 936 GB/s move 46.8 MB in 50 us: 2 MB of weights and 276 sessions of 162 kB.
        let rtx_3090 = DATASHEETS[0].recommend(&SMALL);
        assert_eq!(rtx_3090.step_batch, 256);
        // 4800 GB/s move 240 MB: more than the engine batches.
        assert_eq!(DATASHEETS[6].recommend(&SMALL).step_batch, LARGEST_BATCH);
        // A model too large for a step of 50 us is still run.
        let large = Footprint { weight_bytes: 1 << 40, ..SMALL };
        assert!(recommend(&large).iter().all(|r| r.step_batch == 1 && r.sessions == 0));
        // Arithmetic bounds where memory does not: 71 TFLOP/s do 3.55 G operations in 50 us, 17 rows of 100 M products.
        assert_eq!(DATASHEETS[0].recommend(&Footprint { products: 100_000_000, ..SMALL }).step_batch, 16);
    }

    #[test]
    fn a_window_pass_fills_the_multiprocessors_and_fits() {
        // 132 tiles of 128 x 128 in 512 columns are 4224 rows, 66 sequences of 64 frames.
        assert_eq!(DATASHEETS[6].recommend(&SMALL).sequences, 128);
        // 70.5 GB for activations of 64 frames of 100 MB: 11 sequences.
        assert_eq!(DATASHEETS[6].recommend(&Footprint { activation_bytes: 100_000_000, ..SMALL }).sequences, 8);
    }

    #[test]
    fn sessions_are_bounded_by_memory() {
        // 21.6 GB less 2 MB over 80 kB: 269 975.
        assert_eq!(DATASHEETS[0].recommend(&SMALL).sessions, 1 << 18);
        let stateless = Footprint { state_bytes: 0, frame_bytes: 0, ..SMALL };
        assert!(DATASHEETS[0].recommend(&stateless).sessions > 1 << 33);
    }
}
