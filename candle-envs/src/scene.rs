//! What an environment looks like: shapes, which terminals, pictures and pages draw.

use serde::Serialize;

/// Red, green and blue.
pub type Color = [u8; 3];

/// Shapes in the order in which they are drawn, in units of the environment's own: `width` to the right, `height` downwards.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Scene {
    /// Width.
    pub width: f32,
    /// Height.
    pub height: f32,
    /// What is behind everything.
    pub background: Color,
    /// The shapes.
    pub shapes: Vec<Shape>,
}

/// A filled shape.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Shape {
    /// A rectangle by its upper left corner.
    Rectangle {
        /// Left.
        x: f32,
        /// Top.
        y: f32,
        /// Width.
        width: f32,
        /// Height.
        height: f32,
        /// Its colour.
        color: Color,
    },
    /// A circle by its centre.
    Circle {
        /// Across.
        x: f32,
        /// Down.
        y: f32,
        /// Radius.
        radius: f32,
        /// Its colour.
        color: Color,
    },
    /// A line of round ends.
    Line {
        /// Where it begins, across and down.
        from: [f32; 2],
        /// Where it ends.
        to: [f32; 2],
        /// How thick it is.
        width: f32,
        /// Its colour.
        color: Color,
    },
    /// A line of text by the left end of its baseline.
    Text {
        /// Across.
        x: f32,
        /// Down.
        y: f32,
        /// Height of a capital letter, about.
        size: f32,
        /// What it says.
        text: String,
        /// Its colour.
        color: Color,
    },
}

impl Scene {
    /// A scene without shapes.
    pub fn new(width: f32, height: f32, background: Color) -> Self {
        Self { width, height, background, shapes: Vec::new() }
    }

    /// Adds a rectangle by its upper left corner.
    pub fn rectangle(&mut self, [x, y]: [f32; 2], [width, height]: [f32; 2], color: Color) {
        self.shapes.push(Shape::Rectangle { x, y, width, height, color });
    }

    /// Adds a circle by its centre.
    pub fn circle(&mut self, [x, y]: [f32; 2], radius: f32, color: Color) {
        self.shapes.push(Shape::Circle { x, y, radius, color });
    }

    /// Adds a line.
    pub fn line(&mut self, from: [f32; 2], to: [f32; 2], width: f32, color: Color) {
        self.shapes.push(Shape::Line { from, to, width, color });
    }

    /// Adds a line of text by the left end of its baseline.
    pub fn text(&mut self, [x, y]: [f32; 2], size: f32, text: impl Into<String>, color: Color) {
        self.shapes.push(Shape::Text { x, y, size, text: text.into(), color });
    }
}
