use super::*;
use crate::exec::Executor;
use crate::exec::tensors::TensorExecutor;
use crate::ops::check::{check, normal, refuses};
use crate::tensors::NamedTensors;
use candle_core::Device;
use std::sync::Arc;

fn shape([input, kernel, stride]: [[usize; 2]; 3], channels: usize) -> Conv2dShape {
    Conv2dShape { input, channels, kernel, stride, padding: [0, 0] }
}

/// Patches that touch, overlap and leave places out; one of all places.
const SIZES: [([[usize; 2]; 3], usize); 5] = [
    ([[1, 1], [1, 1], [1, 1]], 1),
    ([[6, 4], [2, 2], [2, 2]], 3),
    ([[5, 7], [3, 2], [1, 2]], 5),
    ([[7, 6], [2, 3], [3, 4]], 2),
    ([[3, 4], [3, 4], [1, 1]], 17),
];

#[test]
fn every_form_of_it_is_the_reference() {
    for (sizes @ [[height, width], ..], channels) in SIZES {
        for pooling in [Pooling::Max, Pooling::Average] {
            check(Pool2d::new(pooling, shape(sizes, channels)).unwrap(), &[height * width * channels]);
        }
    }
}

/// Candle's own pooling, which has channels first.
#[test]
fn it_is_the_pooling_of_candle() {
    let ([[height, width], kernel, stride], channels) = SIZES[2];
    let x = normal("x", &[3, height * width * channels]);
    let image = x.reshape((3, height, width, channels)).unwrap().permute((0, 3, 1, 2)).unwrap().contiguous().unwrap();
    let [kernel, stride] = [kernel, stride].map(|[down, across]| (down, across));
    for (pooling, want) in [
        (Pooling::Max, image.max_pool2d_with_stride(kernel, stride).unwrap()),
        (Pooling::Average, image.avg_pool2d_with_stride(kernel, stride).unwrap()),
    ] {
        let op = Pool2d::new(pooling, shape(SIZES[2].0, channels)).unwrap();
        let want = want.permute((0, 2, 3, 1)).unwrap().contiguous().unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let (x, mut y) = (x.to_vec2::<f32>().unwrap(), vec![0.0; want.len()]);
        x.iter().zip(y.chunks_mut(want.len() / 3)).for_each(|(x, y)| op.forward(&[x], y));
        assert!(y.iter().zip(&want).all(|(y, want)| (y - want).abs() < 1e-6), "{pooling:?}: {y:?} instead of {want:?}");
    }
}

#[test]
fn one_of_several_largest_values_has_the_gradient() {
    let op = Pool2d::new(Pooling::Max, shape([[1, 4], [1, 4], [1, 1]], 1)).unwrap();
    let (x, mut dx) = ([1.0, 3.0, 3.0, 2.0], [9.0; 4]);
    op.backward(&[&x], &[3.0], &[0.5], &mut [&mut dx]);
    assert_eq!(dx, [0.0, 0.5, 0.0, 0.0]);
    let x = candle_core::Var::from_tensor(&Tensor::new(&[x], &Device::Cpu).unwrap()).unwrap();
    let none = NamedTensors::new();
    let mut executor = TensorExecutor::new(&none, &[false], Vec::new(), &Device::Cpu);
    let y = executor.run(Arc::new(op), &[x.as_tensor()], &[], &[]).unwrap().into_floats().unwrap();
    let store = y.sum_all().unwrap().backward().unwrap();
    assert_eq!(store.get(&x).unwrap().to_vec2::<f32>().unwrap(), [[0.0, 1.0, 0.0, 0.0]]);
}

#[test]
fn what_does_not_fit_is_refused() {
    let good = shape([[4, 4], [2, 2], [2, 2]], 2);
    assert!(Pool2d::new(Pooling::Max, Conv2dShape { padding: [1, 0], ..good }).is_err());
    assert!(Pool2d::new(Pooling::Max, shape([[4, 4], [5, 2], [2, 2]], 2)).is_err());
    assert!(Pool2d::new(Pooling::Max, shape([[4, 4], [2, 2], [0, 2]], 2)).is_err());
    refuses(&Pool2d::new(Pooling::Max, good).unwrap(), &[31]);
}
