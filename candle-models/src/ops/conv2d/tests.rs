use super::*;
use crate::ops::Format;
use crate::ops::check::{check_with, normal, refuses};

fn layer(inputs: usize, outputs: usize, bias: bool) -> Linear {
    let bias = bias.then(|| normal("bias", &[outputs]));
    Linear { weight: normal("weight", &[inputs, outputs]), bias, format: Format::F32 }
}

fn shape([input, kernel, stride, padding]: [[usize; 2]; 4], channels: usize) -> Conv2dShape {
    Conv2dShape { input, channels, kernel, stride, padding }
}

#[test]
fn every_form_of_it_is_the_reference() {
    for (sizes, channels, outputs, bias) in [
        ([[1, 1], [1, 1], [1, 1], [0, 0]], 1, 1, true),
        ([[5, 7], [3, 3], [1, 1], [1, 1]], 3, 4, true),
        ([[6, 5], [3, 2], [2, 3], [0, 1]], 2, 33, false),
        ([[2, 3], [4, 5], [1, 2], [2, 3]], 1, 2, true),
        ([[1, 17], [1, 5], [1, 2], [0, 2]], 3, 6, true),
    ] {
        let shape = shape(sizes, channels);
        let [kernel, input] = [shape.kernel, shape.input].map(|[a, b]| a * b * channels);
        let Linear { weight, bias, .. } = layer(kernel, outputs, bias);
        let parameters: Vec<Tensor> = std::iter::once(weight).chain(bias).collect();
        let make = |p: &[Tensor]| {
            let layer = Linear { weight: p[0].clone(), bias: p.get(1).cloned(), format: Format::F32 };
            Conv2d::new(shape, layer).unwrap()
        };
        check_with(&parameters, make, &[input]);
    }
}

/// Candle's own convolution, which has channels first.
#[test]
fn it_is_the_convolution_of_candle() {
    let shape = shape([[6, 5], [3, 2], [2, 2], [1, 1]], 3);
    let conv = Conv2d::new(shape, layer(18, 4, false)).unwrap();
    let x = normal("x", &[2, 90]);
    let patches = shape.patches(conv.output, &x).unwrap();
    let y = linear_reference(&patches, &conv.layer.weight, None, Activation::None).unwrap();
    let [height, width] = shape.output().unwrap();
    let weight = conv.layer.weight.reshape((3, 2, 3, 4)).unwrap().permute((3, 2, 0, 1)).unwrap().contiguous().unwrap();
    let image = x.reshape((2, 6, 5, 3)).unwrap().permute((0, 3, 1, 2)).unwrap().contiguous().unwrap();
    let want = image.conv2d(&weight, 1, 2, 1, 1).unwrap().permute((0, 2, 3, 1)).unwrap();
    let y = y.reshape((2, height, width, 4)).unwrap();
    let difference = (y - want).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
    assert!(difference < 1e-5, "{difference}");
}

/// Candle's own convolution over one axis, which has channels first.
#[test]
fn over_a_line_it_is_the_convolution_of_one_axis() {
    for (kernel, stride, padding) in [(1, 1, 0), (3, 1, 1), (5, 2, 2), (4, 3, 0)] {
        let shape = Conv2dShape::line([17, 3], kernel, stride, padding);
        let conv = Conv2d::new(shape, layer(kernel * 3, 6, false)).unwrap();
        let weight = conv.layer.weight.reshape((kernel, 3, 6)).unwrap().permute((2, 1, 0)).unwrap().contiguous().unwrap();
        let x = normal("x", &[2, 17 * 3]);
        let line = x.reshape((2, 17, 3)).unwrap().transpose(1, 2).unwrap().contiguous().unwrap();
        let want = line.conv1d(&weight, padding, stride, 1, 1).unwrap().transpose(1, 2).unwrap().flatten_from(1).unwrap();
        let patches = shape.patches(conv.output, &x).unwrap();
        let y = linear_reference(&patches, &conv.layer.weight, None, Activation::None).unwrap().reshape(want.dims()).unwrap();
        let difference = (y - want).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
        assert!(difference < 1e-5, "{kernel}, {stride}, {padding}: {difference}");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let good = [[4, 4], [3, 3], [1, 1], [0, 0]];
    assert!(Conv2d::new(shape(good, 2), layer(17, 3, true)).is_err());
    for bad in [[[2, 4], [3, 3], [1, 1], [0, 0]], [[4, 4], [3, 3], [0, 1], [0, 0]], [[4, 4], [0, 3], [1, 1], [0, 0]]] {
        assert!(shape(bad, 2).output().is_err(), "{bad:?}");
    }
    refuses(&Conv2d::new(shape(good, 2), layer(18, 3, true)).unwrap(), &[31]);
}
