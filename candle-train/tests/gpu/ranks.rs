//! Calls over NCCL, on a group of one GPU.

use crate::cuda;
use candle_core::Tensor;
use candle_train::parallel::Communicator;
use candle_train::parallel::environment::{Launched, Launcher, Master};
use candle_train::parallel::nccl::NcclRank;
use std::net::TcpListener;
use std::time::Duration;

#[test]
fn a_group_of_one_gpu() {
    let Some(device) = cuda() else { return };
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().min(65_000);
    let master = Some(Master { host: "127.0.0.1".into(), port });
    let launched = Launched { launcher: Launcher::Torchrun, rank: 0, size: 1, local_rank: 0, master };
    let ranks = NcclRank::join(&launched, &device, "", Duration::from_secs(60)).unwrap();
    assert_eq!((ranks.rank(), ranks.size()), (0, 1));

    let values: Vec<f32> = (0..100_000).map(|i| i as f32 / 7.0).collect();
    let tensor = Tensor::from_slice(&values, values.len(), &device).unwrap();
    ranks.all_reduce_cuda(&tensor).unwrap();
    assert_eq!(tensor.to_vec1::<f32>().unwrap(), values);
    let mut sum = values.clone();
    ranks.all_reduce(&mut sum).unwrap();
    assert_eq!(sum, values);
    ranks.all_reduce(&mut []).unwrap();

    let mut bytes = *b"bytes";
    ranks.broadcast(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"bytes");
    ranks.broadcast(&mut [], 0).unwrap();
    assert!(ranks.broadcast(&mut bytes, 1).is_err());
    assert_eq!(ranks.all_gather(b"all").unwrap(), [b"all"]);
    assert_eq!(ranks.all_gather(b"").unwrap(), [b""]);
    ranks.barrier().unwrap();

    ranks.abandon("a test");
    let error = ranks.barrier().unwrap_err().to_string();
    assert!(error.contains("rank 0: a test"), "{error}");
}
