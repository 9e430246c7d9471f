//! Frames in a file: a GIF, or an SVG that moves by itself.

use super::raster::Raster;
use super::show::Show;
use super::{Limits, Next};
use anyhow::{Context, Result};
use candle_envs::{Color, Scene, Shape};
use candle_models::html::escape;
use gif::{Encoder, Frame, Repeat};
use std::fmt::Write as _;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

/// Pixels of a side at most.
const SIDE: usize = 480;
/// Frames in a second above which programs that show a GIF slow it down (Hz).
const FASTEST: f32 = 50.0;
/// How long the end of an episode is to be seen (s).
const END: f32 = 1.0;
/// Letters that fit into the line below a picture.
const LETTERS: f32 = 82.0;

/// Writes what is seen. A GIF leaves out frames of what is faster than such a picture can be.
pub fn write(show: &mut Show, limits: Limits, gif: Option<&Path>, svg: Option<&Path>) -> Result<()> {
    let rate = show.rate();
    let every = (rate / FASTEST).ceil() as usize;
    let mut moving = gif.map(|path| Moving::new(path, every as f32 / rate)).transpose()?;
    let mut drawn = svg.map(|_| Vec::new());
    let mut number = 0;
    limits.over(show, |show| {
        let scene = captioned(show.scene(), show.marks(), &show.line());
        if let Some(moving) = moving.as_mut().filter(|_| number % every == 0) {
            moving.add(&scene, show.ended())?;
        }
        if let Some(drawn) = &mut drawn {
            drawn.push((scene, 1.0 / rate + if show.ended() { END } else { 0.0 }));
        }
        number += 1;
        Ok(Next::Step(None))
    })?;
    if let (Some(path), Some(drawn)) = (svg, drawn) {
        std::fs::write(path, animated(&drawn)).with_context(|| path.display().to_string())?;
        println!("{}: {} frames", path.display(), drawn.len());
    }
    match moving {
        Some(moving) => moving.close(),
        None => Ok(()),
    }
}

/// A scene with what is marked on it, and how it stands in a line below.
fn captioned(scene: Scene, marks: Vec<Shape>, line: &str) -> Scene {
    // A letter is 0.84 as wide as a capital is high.
    let size = scene.width / LETTERS / 0.84;
    let mut all = Scene { height: scene.height + 3.0 * size, ..scene };
    let top = all.height - 3.0 * size;
    all.shapes.extend(marks);
    all.rectangle([0.0, top], [all.width, 3.0 * size], [30; 3]);
    all.text([size, top + 2.0 * size], size, line, [220; 3]);
    all
}

/// A GIF that is being written.
struct Moving<'a> {
    path: &'a Path,
    /// Seconds of a frame.
    each: f32,
    file: Option<Encoder<BufWriter<File>>>,
    frames: usize,
}

impl<'a> Moving<'a> {
    fn new(path: &'a Path, each: f32) -> Result<Self> {
        Ok(Self { path, each, file: None, frames: 0 })
    }

    fn add(&mut self, scene: &Scene, end: bool) -> Result<()> {
        let mut raster = Raster::new(scene, [SIDE; 2]);
        scene.shapes.iter().for_each(|shape| raster.draw(shape));
        let (width, height) = (raster.width as u16, raster.height as u16);
        let mut frame = Frame::from_rgb_speed(width, height, raster.pixels.as_flattened(), 10);
        frame.delay = (100.0 * (self.each + if end { END } else { 0.0 })).round() as u16;
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                let file = BufWriter::new(File::create(self.path).with_context(|| self.path.display().to_string())?);
                let mut file = Encoder::new(file, width, height, &[])?;
                file.set_repeat(Repeat::Infinite)?;
                none.insert(file)
            }
        };
        self.frames += 1;
        Ok(file.write_frame(&frame)?)
    }

    fn close(self) -> Result<()> {
        if let Some(file) = self.file {
            file.into_inner()?
                .into_inner()
                .map_err(std::io::IntoInnerError::into_error)
                .with_context(|| self.path.display().to_string())?;
        }
        println!("{}: {} frames", self.path.display(), self.frames);
        Ok(())
    }
}

/// Scenes, each with the seconds that it is to be seen, one after the other and again from the first. What does not animate shows the first.
pub fn animated(scenes: &[(Scene, f32)]) -> String {
    let all: f32 = scenes.iter().map(|(_, seconds)| seconds).sum();
    let [width, height] = scenes.first().map_or([1.0; 2], |(scene, _)| [scene.width, scene.height]);
    let scale = SIDE as f32 / width.max(height);
    // Writing to a string cannot fail.
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{:.0}\" height=\"{:.0}\" font-family=\"monospace\" \
         stroke-linecap=\"round\">\n",
        width * scale,
        height * scale
    );
    let mut begins = 0.0;
    for (number, (scene, seconds)) in scenes.iter().enumerate() {
        let ends = begins + seconds / all;
        let (values, times) = match (number == 0, number + 1 == scenes.len()) {
            (true, _) => ("inline;none", format!("0;{ends:.5}")),
            (_, true) => ("none;inline", format!("0;{begins:.5}")),
            _ => ("none;inline;none", format!("0;{begins:.5};{ends:.5}")),
        };
        svg += if number == 0 { "<g>" } else { "<g display=\"none\">" };
        if scenes.len() > 1 {
            let _ = write!(
                svg,
                "<animate attributeName=\"display\" values=\"{values}\" keyTimes=\"{times}\" dur=\"{all:.3}s\" calcMode=\"discrete\" \
                 repeatCount=\"indefinite\"/>"
            );
        }
        let _ = write!(svg, "<rect width=\"{width}\" height=\"{height}\" fill=\"{}\"/>", hex(scene.background));
        scene.shapes.iter().for_each(|shape| element(&mut svg, shape));
        svg += "</g>\n";
        begins = ends;
    }
    svg + "</svg>\n"
}

fn element(svg: &mut String, shape: &Shape) {
    // Writing to a string cannot fail.
    let _ = match shape {
        Shape::Rectangle { x, y, width, height, color } => {
            write!(svg, "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{}\"/>", hex(*color))
        }
        Shape::Circle { x, y, radius, color } => write!(svg, "<circle cx=\"{x}\" cy=\"{y}\" r=\"{radius}\" fill=\"{}\"/>", hex(*color)),
        Shape::Line { from: [x, y], to: [x2, y2], width, color } => {
            let color = hex(*color);
            write!(svg, "<line x1=\"{x}\" y1=\"{y}\" x2=\"{x2}\" y2=\"{y2}\" stroke=\"{color}\" stroke-width=\"{width}\"/>")
        }
        Shape::Text { x, y, size, text, color } => {
            // A capital letter is about 0.7 as high as its font.
            let (color, size) = (hex(*color), size / 0.7);
            write!(svg, "<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\" fill=\"{color}\">{}</text>", escape(text))
        }
    };
}

fn hex([red, green, blue]: Color) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}
