//! What the stages look like from the side. Blast zones are those that Magus420 published on Smashboards, the platforms those of the
//! library libmelee, the slopes of the floor where fighters stand in recorded games. Game units.

use serde::Serialize;

/// Where a fighter can stand, and where it is lost.
#[derive(Serialize)]
pub struct Stage {
    #[serde(skip)]
    id: u16,
    /// The main floor from left to right, as points.
    pub floor: &'static [[f32; 2]],
    /// Height, left and right end of what can be stood on above it.
    pub platforms: &'static [[f32; 3]],
    /// Left, right, top, bottom.
    pub blast: [f32; 4],
    /// What moves and is not in a replay.
    pub unseen: &'static str,
}

const ALL: [Stage; 6] = [
    Stage {
        id: 2,
        floor: &[[-63.35, 0.0], [63.35, 0.0]],
        platforms: &[[42.75, -14.25, 14.25]],
        blast: [-198.75, 198.75, 202.5, -146.25],
        unseen: "The two platforms at the sides go up and down and are not drawn: the replay does not say where they are.",
    },
    Stage {
        id: 3,
        floor: &[[-87.75, 0.0], [87.75, 0.0]],
        platforms: &[[25.0, -55.0, -25.0], [25.0, 25.0, 55.0]],
        blast: [-230.0, 230.0, 180.0, -111.0],
        unseen: "The stage changes its shape during the game; it is drawn as it begins, for the replay does not say when.",
    },
    Stage {
        id: 8,
        floor: &[[-56.0, -3.5], [-39.0, 0.0], [39.0, 0.0], [56.0, -3.5]],
        platforms: &[[23.45, -59.5, -28.0], [42.0, -15.75, 15.75], [23.45, 28.0, 59.5]],
        blast: [-175.7, 173.6, 168.0, -91.0],
        unseen: "The cloud that carries fighters around the stage is not drawn.",
    },
    Stage {
        id: 28,
        floor: &[[-77.27, 0.0], [77.27, 0.0]],
        platforms: &[[30.14, -61.39, -31.73], [51.43, -19.02, 19.02], [30.24, 31.7, 63.07]],
        blast: [-255.0, 255.0, 250.0, -123.0],
        unseen: "",
    },
    Stage {
        id: 31,
        floor: &[[-68.4, 0.0], [68.4, 0.0]],
        platforms: &[[27.2, -57.6, -20.0], [54.4, -18.8, 18.8], [27.2, 20.0, 57.6]],
        blast: [-224.0, 224.0, 200.0, -108.8],
        unseen: "",
    },
    Stage { id: 32, floor: &[[-85.57, 0.0], [85.57, 0.0]], platforms: &[], blast: [-246.0, 246.0, 188.0, -140.0], unseen: "" },
];

/// A stage of tournament play by its id.
pub fn stage(id: u16) -> Option<&'static Stage> {
    ALL.iter().find(|stage| stage.id == id)
}
