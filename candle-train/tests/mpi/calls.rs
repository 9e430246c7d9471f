//! What every call gives, on 1, 2 and 4 ranks.

use crate::{end, mpirun};
use candle_train::parallel::{Communicator, from_first, gather};
use std::time::Instant;

fn all_right(size: usize, script: &str) {
    let (code, said) = end(&mpirun(size, script).output().unwrap());
    assert_eq!(code, 0, "{said}");
    assert_eq!(said.matches("all calls are right").count(), size, "{said}");
}

#[test]
fn every_call_on_any_number_of_ranks() {
    [1, 2, 3, 4].into_iter().for_each(|size| all_right(size, "calls"));
}

#[test]
#[ignore = "deep: the test above with sums and broadcasts longer than a message"]
fn long_calls_on_any_number_of_ranks() {
    [1, 2, 3, 4].into_iter().for_each(|size| all_right(size, "long calls"));
}

/// Values of a rank that no other sum has by chance.
fn values(rank: usize, n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + rank * 104_729) % 10_007) as f32 / 997.0 - 5.0).collect()
}

/// How long calls are: values of sums, bytes of a broadcast, bytes that rank 1 brings to a gathering.
pub struct Lengths {
    pub sums: &'static [usize],
    pub broadcast: usize,
    pub gathered: &'static [usize],
}

/// Within one message.
pub const SHORT: Lengths = Lengths { sums: &[0, 1, 3, 1000, 65_536, 1_000_003], broadcast: 3_000_001, gathered: &[0, 1, 1_000_000] };
/// Over the length of one message too.
pub const LONG: Lengths = Lengths { sums: &[17_000_003], broadcast: 70_000_000, gathered: &[30_000_000] };

/// In every rank.
pub fn all(ranks: &dyn Communicator, lengths: &Lengths) {
    let (rank, size) = (ranks.rank(), ranks.size());
    for &n in lengths.sums {
        let mut sum = values(rank, n);
        ranks.all_reduce(&mut sum).unwrap();
        let expected = |i: usize| (0..size).map(|r| f64::from(((i * 7919 + r * 104_729) % 10_007) as f32 / 997.0 - 5.0)).sum::<f64>();
        assert!((0..n).step_by(1 + n / 5000).all(|i| (f64::from(sum[i]) - expected(i)).abs() < 1e-5), "sum of {n}");
        let bits: u64 = sum.iter().fold(0, |hash: u64, v| hash.rotate_left(5).wrapping_mul(0x9e37_79b9).wrapping_add(v.to_bits().into()));
        assert!(gather(ranks, &bits).unwrap().iter().all(|other| *other == bits), "the sum of {n} has the same bits everywhere");
    }
    for root in 0..size {
        let mut bytes = vec![rank as u8; lengths.broadcast];
        ranks.broadcast(&mut bytes, root).unwrap();
        assert!(bytes.iter().all(|b| *b == root as u8));
    }
    assert!(ranks.broadcast(&mut [], size).is_err());
    for &unit in lengths.gathered {
        let gathered = ranks.all_gather(&vec![rank as u8; rank * unit]).unwrap();
        assert_eq!(gathered.len(), size);
        assert!(gathered.iter().enumerate().all(|(r, bytes)| bytes.len() == r * unit && bytes.iter().all(|b| *b == r as u8)));
    }
    let first = from_first(ranks, format!("from {rank}").into_bytes()).unwrap();
    assert_eq!(first, b"from 0");
    for _ in 0..1000 {
        ranks.barrier().unwrap();
    }
    println!("all calls are right");
}

/// Medians of the time of a sum, in microseconds: 1 KB and 4 MB. `mpirun -n 2 TESTS --exact as_a_rank --nocapture` with
/// `CANDLE_TEST_RANK=measure` prints them.
pub fn measure(ranks: &dyn Communicator) {
    for (name, n, repeats) in [("1 KB", 256, 3000), ("4 MB", 1 << 20, 300), ("25 MB", 25 << 18, 60)] {
        let mut values = vec![1.0; n];
        let mut times: Vec<f64> = (0..repeats)
            .map(|_| {
                values.fill(1.0);
                ranks.barrier().unwrap();
                let start = Instant::now();
                ranks.all_reduce(&mut values).unwrap();
                start.elapsed().as_secs_f64() * 1e6
            })
            .collect();
        times.sort_by(f64::total_cmp);
        if ranks.rank() == 0 {
            println!("sum of {name}: median {:.1} us, 90% {:.1} us", times[repeats / 2], times[repeats * 9 / 10]);
        }
    }
}
