//! Shapes as pixels, with smooth edges.

use candle_envs::{Color, Scene, Shape};
use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster};

/// A picture.
pub struct Raster {
    /// Pixels to the right.
    pub width: usize,
    /// Pixels downwards.
    pub height: usize,
    /// Row by row.
    pub pixels: Vec<Color>,
    /// Pixels of a unit of the scene.
    pub scale: f32,
}

impl Raster {
    /// A scene's background, as large as it fits: a whole number of pixels for each unit where that is more than one, so that the squares of a
    /// board end where pixels do.
    pub fn new(scene: &Scene, [width, height]: [usize; 2]) -> Self {
        let scale = (width as f32 / scene.width).min(height as f32 / scene.height);
        let scale = if scale >= 1.0 { scale.floor() } else { scale };
        let pixels = |length: f32, most: usize| ((length * scale).round() as usize).clamp(1, most.max(1));
        let (width, height) = (pixels(scene.width, width), pixels(scene.height, height));
        Self { width, height, pixels: vec![scene.background; width * height], scale }
    }

    /// The colour of a pixel; beyond the last row that of the last row.
    pub fn at(&self, x: usize, y: usize) -> Color {
        self.pixels[y.min(self.height - 1) * self.width + x]
    }

    /// Draws a shape, text as well.
    pub fn draw(&mut self, shape: &Shape) {
        let scale = self.scale;
        match shape {
            Shape::Rectangle { x, y, width, height, color } => {
                let [left, top, right, bottom] = [*x, *y, x + width, y + height].map(|x| x * scale);
                let overlap = |at: f32, from: f32, to: f32| (to.min(at + 0.5) - from.max(at - 0.5)).clamp(0.0, 1.0);
                self.paint([left, top, right, bottom], *color, |x, y| overlap(x, left, right) * overlap(y, top, bottom));
            }
            Shape::Circle { x, y, radius, color } => {
                let [cx, cy, r] = [*x, *y, *radius].map(|x| x * scale);
                self.paint([cx - r, cy - r, cx + r, cy + r], *color, |x, y| r - (x - cx).hypot(y - cy) + 0.5);
            }
            Shape::Line { from, to, width, color } => {
                let ([x0, y0], [x1, y1]) = (from.map(|x| x * scale), to.map(|x| x * scale));
                // A line is never thinner than a pixel, or it could not be seen.
                let r = (width * scale / 2.0).max(0.5);
                let (dx, dy) = (x1 - x0, y1 - y0);
                let length = (dx * dx + dy * dy).max(f32::MIN_POSITIVE);
                let bounds = [x0.min(x1) - r, y0.min(y1) - r, x0.max(x1) + r, y0.max(y1) + r];
                self.paint(bounds, *color, |x, y| {
                    let along = (((x - x0) * dx + (y - y0) * dy) / length).clamp(0.0, 1.0);
                    r - (x - x0 - along * dx).hypot(y - y0 - along * dy) + 0.5
                });
            }
            Shape::Text { x, y, size, text, color } => self.text([x * scale, y * scale], size * scale, text, *color),
        }
    }

    /// Mixes a colour in where `coverage` says how much of a pixel around a place it covers, from 0 to 1 and cut there.
    fn paint(&mut self, [left, top, right, bottom]: [f32; 4], color: Color, coverage: impl Fn(f32, f32) -> f32) {
        // What lies outside is cut: numbers below 0, and those that are none, become 0.
        let (first, last) = ((left - 1.0) as usize, ((right + 1.0).ceil() as usize).min(self.width));
        for y in (top - 1.0) as usize..((bottom + 1.0).ceil() as usize).min(self.height) {
            for x in first..last {
                let share = coverage(x as f32 + 0.5, y as f32 + 0.5).clamp(0.0, 1.0);
                let pixel = &mut self.pixels[y * self.width + x];
                *pixel = std::array::from_fn(|i| (f32::from(pixel[i]) * (1.0 - share) + f32::from(color[i]) * share).round() as u8);
            }
        }
    }

    /// A line of text by the left end of its baseline, in pixels; `size` is the height of a capital letter.
    fn text(&mut self, [x, y]: [f32; 2], size: f32, text: &str, color: Color) {
        // Where the capital letters of the font's bitmaps begin and end.
        const TOP: f32 = 7.0;
        const BASE: f32 = 23.0;
        let shrink = (BASE - TOP) / size.max(f32::MIN_POSITIVE);
        let mut left = x;
        for letter in text.chars() {
            let found = get_raster(letter, FontWeight::Regular, RasterHeight::Size32);
            let Some(glyph) = found.or_else(|| get_raster('?', FontWeight::Regular, RasterHeight::Size32)) else { return };
            let (rows, top) = (glyph.raster(), y - BASE / shrink);
            let right = left + glyph.width() as f32 / shrink;
            // The mean of what of the bitmap falls into a pixel.
            let range = |at: f32, most: usize| {
                let (from, to) = ((at - 0.5) * shrink, (at + 0.5) * shrink);
                let from = from.max(0.0) as usize;
                from.min(most)..(to.max(0.0).ceil() as usize).max(from).min(most)
            };
            self.paint([left, top, right, top + glyph.height() as f32 / shrink], color, |x, y| {
                let (across, down) = (range(x - left, glyph.width()), range(y - top, glyph.height()));
                let all = across.len() * down.len();
                let sum: f32 = rows[down].iter().flat_map(|row| &row[across.clone()]).map(|share| f32::from(*share) / 255.0).sum();
                if all == 0 { 0.0 } else { sum / all as f32 }
            });
            left = right;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(scene: &Scene, fits: [usize; 2]) -> Raster {
        let mut raster = Raster::new(scene, fits);
        scene.shapes.iter().for_each(|shape| raster.draw(shape));
        raster
    }

    #[test]
    fn squares_of_a_board_end_where_pixels_do() {
        let mut scene = Scene::new(3.0, 2.0, [0; 3]);
        scene.rectangle([1.0, 1.0], [1.0, 1.0], [255; 3]);
        let raster = drawn(&scene, [20, 20]);
        assert_eq!((raster.width, raster.height), (18, 12));
        for (i, pixel) in raster.pixels.iter().enumerate() {
            let inside = (6..12).contains(&(i % 18)) && i / 18 >= 6;
            assert_eq!(*pixel, [if inside { 255 } else { 0 }; 3], "{i}");
        }
    }

    #[test]
    fn a_disc_covers_its_area_and_a_hair_can_be_seen() {
        let mut scene = Scene::new(100.0, 100.0, [0; 3]);
        scene.circle([50.0, 50.0], 20.0, [255; 3]);
        let light = |raster: &Raster| raster.pixels.iter().map(|pixel| f32::from(pixel[0]) / 255.0).sum::<f32>();
        let area = std::f32::consts::PI * 400.0;
        assert!((light(&drawn(&scene, [100, 100])) / area - 1.0).abs() < 0.01);
        let mut scene = Scene::new(100.0, 100.0, [0; 3]);
        scene.line([0.0, 50.0], [100.0, 50.0], 0.01, [255; 3]);
        assert!(light(&drawn(&scene, [50, 50])) > 40.0);
    }

    #[test]
    fn letters_stand_on_their_baseline_as_high_as_they_are_asked_for() {
        let mut scene = Scene::new(200.0, 100.0, [0; 3]);
        scene.text([10.0, 60.0], 40.0, "HH", [255; 3]);
        let raster = drawn(&scene, [200, 100]);
        let lit: Vec<usize> = (0..100).filter(|y| (0..200).any(|x| raster.at(x, *y)[0] > 128)).collect();
        assert!(lit[0].abs_diff(20) <= 1 && lit[lit.len() - 1].abs_diff(59) <= 1, "{lit:?}");
    }

    /// An environment of one's own may draw anything.
    #[test]
    fn what_cannot_be_drawn_is_left_out() {
        let mut scene = Scene::new(f32::NAN, 0.0, [0; 3]);
        for x in [f32::NAN, f32::INFINITY, -1e30, 1e30] {
            scene.rectangle([x, x], [x, x], [9; 3]);
            scene.circle([x, x], x, [9; 3]);
            scene.line([x, x], [0.0, x], x, [9; 3]);
            scene.text([x, x], x, "\u{4f60}x", [9; 3]);
        }
        let raster = drawn(&scene, [10, 10]);
        assert_eq!(raster.pixels.len(), raster.width * raster.height);
        scene = Scene { width: 10.0, height: 10.0, ..scene };
        assert_eq!(drawn(&scene, [10, 10]).pixels.len(), 100);
    }
}
