//! The action space: what the policy chooses in a frame, as 13 small classes.
//!
//! Eight buttons (up or down), four stick axes (17 classes over the travel of the stick) and the analog shoulder (5 classes).
//! A stick value `x` in [-1, 1] has class `floor(16 v + 0.5)` with `v = (x + 1) / 2`, the shoulder `floor(4 v + 0.5)`.
//! The model's 81 logits follow the same order: one logit per button, then 17 per axis, then 5.
//! The (component, class) pairs are also the 89 tokens of a WordLevel tokenizer, so that any tool can read logged actions.
//!
//! ```
//! use candle_models::policy::actions::{Action, LOGITS, most_likely, nll};
//!
//! let logits = [0.0; LOGITS]; // nothing is more likely than anything else
//! let cost = nll(&logits, &Action::default());
//! assert!((cost[0] - 8.0 * 2f32.ln()).abs() < 1e-5); // eight buttons
//! assert_eq!(most_likely(&logits).classes()[0], 0);
//! ```

use super::game::{Controller, buttons};
use crate::files::{read_limited, write_atomic};
use crate::{Error, Result};
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use tokenizers::Tokenizer;
use tokenizers::models::wordlevel::WordLevel;
use tokenizers::pre_tokenizers::whitespace::WhitespaceSplit;

/// Components of an action.
pub const ACTION: usize = 13;
/// Buttons among them; they come first.
pub const BUTTONS: usize = 8;
/// Logits of a model.
pub const LOGITS: usize = 81;
/// (component, class) pairs. The unknown token has this number as its id.
pub const TOKENS: usize = 89;
/// Reported components: the eight buttons count as one.
pub const GROUPS: usize = 6;
/// The names of the reported components, for tables.
pub const GROUP_NAMES: [&str; GROUPS] = ["buttons", "main x", "main y", "c x", "c y", "shoulder"];
pub use crate::exec::SAMPLE;

const UNKNOWN: &str = "<unk>";
const STICK: u8 = 17;
const SHOULDER: u8 = 5;
/// A tokenizer of this vocabulary takes 3 KB; nothing near a megabyte is one.
const TOKENIZER_BYTES: u64 = 1 << 20;

/// One component of an action.
///
/// ```
/// use candle_models::policy::actions::{ACTION, COMPONENTS, LOGITS};
///
/// assert_eq!(COMPONENTS.len(), ACTION);
/// assert_eq!(COMPONENTS.iter().map(|component| component.logits()).sum::<usize>(), LOGITS);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Component {
    /// The name, as in the tokens.
    pub name: &'static str,
    /// How many classes it has.
    pub classes: u8,
    /// Its first logit.
    pub logit: usize,
    /// The token of its class 0.
    pub token: usize,
    /// The class of a controller that nobody touches.
    pub neutral: u8,
}

impl Component {
    /// How many logits it has: a button has one, the others one per class.
    pub const fn logits(&self) -> usize {
        if self.classes == 2 { 1 } else { self.classes as usize }
    }
}

/// The 13 components in order.
pub const COMPONENTS: [Component; ACTION] = {
    let names = ["A", "B", "X", "Y", "Z", "L", "R", "D_up", "main_x", "main_y", "c_x", "c_y", "shoulder"];
    let empty = Component { name: "", classes: 0, logit: 0, token: 0, neutral: 0 };
    let mut components = [empty; ACTION];
    let (mut logit, mut token, mut i) = (0, 0, 0);
    while i < ACTION {
        let (classes, neutral) = match i {
            0..BUTTONS => (2, 0),
            12 => (SHOULDER, 0),
            _ => (STICK, STICK / 2),
        };
        components[i] = Component { name: names[i], classes, logit, token, neutral };
        logit += components[i].logits();
        token += classes as usize;
        i += 1;
    }
    assert!(logit == LOGITS && token == TOKENS);
    components
};

const BUTTON_BITS: [u16; BUTTONS] = [buttons::A, buttons::B, buttons::X, buttons::Y, buttons::Z, buttons::L, buttons::R, buttons::D_UP];

/// The reported component that component `i` counts towards, 0 to 5.
pub const fn group(i: usize) -> usize {
    if i < BUTTONS { 0 } else { i + 1 - BUTTONS }
}

/// One frame's action: a class per component, always in range.
///
/// ```
/// use candle_models::policy::actions::Action;
/// # fn main() -> candle_models::Result<()> {
/// let untouched = Action::default();
/// assert_eq!(Action::from_ids(&untouched.to_ids())?, untouched);
/// assert_eq!(Action::from_controller(&untouched.to_controller()), untouched);
/// let refused = Action::from_ids(&[9; 13]).unwrap_err().to_string();
/// assert!(refused.contains("expected a class of 0 to 1, found 9"), "{refused}");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Action {
    classes: [u8; ACTION],
}

impl Default for Action {
    /// The untouched controller.
    fn default() -> Self {
        Self { classes: std::array::from_fn(|i| COMPONENTS[i].neutral) }
    }
}

impl Action {
    /// An action from its classes, in the order of [`COMPONENTS`]. A class out of range is an error.
    pub fn new(classes: [u8; ACTION]) -> Result<Self> {
        for (component, class) in COMPONENTS.iter().zip(classes) {
            if class >= component.classes {
                let (name, last) = (component.name, component.classes - 1);
                return Err(Error::Input(format!("action component {name}: expected a class of 0 to {last}, found {class}")));
            }
        }
        Ok(Self { classes })
    }

    /// An action from 13 class numbers, as a model gives them.
    pub fn from_ids(ids: &[u32]) -> Result<Self> {
        let ids: &[u32; ACTION] =
            ids.try_into().map_err(|_| Error::Input(format!("action: expected {ACTION} components, found {}", ids.len())))?;
        Self::new(ids.map(|id| u8::try_from(id).unwrap_or(u8::MAX)))
    }

    /// The classes, in the order of [`COMPONENTS`].
    pub fn classes(&self) -> [u8; ACTION] {
        self.classes
    }

    /// The classes as a model reads them.
    pub fn to_ids(&self) -> [u32; ACTION] {
        self.classes.map(u32::from)
    }

    /// The nearest action. Values beyond the ends are clamped, non-finite ones count as neutral.
    pub fn from_controller(controller: &Controller) -> Self {
        let button = |bits: u16| u8::from(controller.buttons & bits != 0);
        let stick = |x: f32| nearest((x + 1.0) / 2.0, STICK, STICK / 2);
        let mut classes = [0; ACTION];
        for (class, bits) in classes.iter_mut().zip(BUTTON_BITS) {
            *class = button(bits);
        }
        let [main, c] = [controller.main_stick, controller.c_stick];
        classes[8..12].copy_from_slice(&[main[0], main[1], c[0], c[1]].map(stick));
        classes[12] = nearest(controller.shoulder, SHOULDER, 0);
        Self { classes }
    }

    /// The controller at the middle of every class.
    pub fn to_controller(&self) -> Controller {
        let stick = |i: usize| stick_value(self.classes[i]);
        let pressed = BUTTON_BITS.iter().zip(self.classes).filter(|(_, class)| *class == 1);
        Controller {
            buttons: pressed.fold(0, |all, (bits, _)| all | bits),
            main_stick: [stick(8), stick(9)],
            c_stick: [stick(10), stick(11)],
            shoulder: shoulder_value(self.classes[12]),
        }
    }

    /// The action on a mirrored stage: both sticks' x becomes `16 - x`. Twice is the same action again.
    pub fn mirror(&self) -> Self {
        let mut classes = self.classes;
        for i in [8, 10] {
            classes[i] = STICK - 1 - classes[i];
        }
        Self { classes }
    }

    /// The tokens of the 13 components.
    pub fn tokens(&self) -> [u32; ACTION] {
        std::array::from_fn(|i| (COMPONENTS[i].token + self.classes[i] as usize) as u32)
    }

    /// The action of 13 tokens: one per component, in order.
    pub fn from_tokens(tokens: &[u32]) -> Result<Self> {
        if tokens.len() != ACTION {
            return Err(Error::Input(format!("action: expected {ACTION} tokens, found {}", tokens.len())));
        }
        let mut classes = [0; ACTION];
        for ((class, component), &token) in classes.iter_mut().zip(&COMPONENTS).zip(tokens) {
            let offset = (token as usize).checked_sub(component.token).filter(|c| *c < component.classes as usize);
            *class = offset.ok_or_else(|| {
                let found = token_name(token as usize).unwrap_or_else(|| UNKNOWN.to_owned());
                Error::Input(format!("action: expected a token of {}, found {found}", component.name))
            })? as u8;
        }
        Ok(Self { classes })
    }
}

/// Thirteen tokens with spaces between them; the tokenizer and [`Action::from_str`] read it back.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        for (i, token) in self.tokens().into_iter().enumerate() {
            let space = if i == 0 { "" } else { " " };
            write!(f, "{space}{}", token_name(token as usize).unwrap_or_default())?;
        }
        Ok(())
    }
}

impl FromStr for Action {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let tokens: Vec<u32> = text
            .split_whitespace()
            .map(|word| {
                let known = (0..TOKENS).find(|t| token_name(*t).as_deref() == Some(word));
                known.map(|t| t as u32).ok_or_else(|| Error::Input(format!("action: unknown token {word:?}")))
            })
            .collect::<Result<_>>()?;
        Self::from_tokens(&tokens)
    }
}

/// The class whose middle is nearest to `v` in [0, 1].
fn nearest(v: f32, classes: u8, neutral: u8) -> u8 {
    if !v.is_finite() {
        return neutral;
    }
    let last = f32::from(classes - 1);
    (last * v + 0.5).floor().clamp(0.0, last) as u8
}

fn stick_value(class: u8) -> f32 {
    f32::from(class) / f32::from(STICK / 2) - 1.0
}

fn shoulder_value(class: u8) -> f32 {
    f32::from(class) / f32::from(SHOULDER - 1)
}

/// The text of a token: `A:down`, `main_x:+0.25`, `shoulder:0.50`. `None` beyond the last.
pub fn token_name(token: usize) -> Option<String> {
    let i = COMPONENTS.iter().rposition(|c| c.token <= token)?;
    let component = COMPONENTS[i];
    let class = u8::try_from(token - component.token).ok().filter(|c| *c < component.classes)?;
    let value = match i {
        0..BUTTONS => if class == 1 { "down" } else { "up" }.to_owned(),
        12 => format!("{:.2}", shoulder_value(class)),
        _ => format!("{:+}", stick_value(class)),
    };
    Some(format!("{}:{value}", component.name))
}

/// The vocabulary as a tokenizer: words between spaces, ids as in [`Action::tokens`], then the unknown token.
pub fn tokenizer() -> Result<Tokenizer> {
    let words = (0..TOKENS).filter_map(token_name).chain([UNKNOWN.to_owned()]);
    let model = WordLevel::builder()
        .vocab(words.zip(0..).collect())
        .unk_token(UNKNOWN.to_owned())
        .build()
        .map_err(|e| Error::Input(format!("action tokenizer: {e}")))?;
    let mut tokenizer = Tokenizer::new(model);
    tokenizer.with_pre_tokenizer(Some(WhitespaceSplit));
    Ok(tokenizer)
}

/// The content of a bundle's `tokenizer.json`.
pub fn tokenizer_json() -> Result<String> {
    tokenizer()?.to_string(true).map_err(|e| Error::Input(format!("action tokenizer: {e}")))
}

/// Writes the vocabulary as `tokenizer.json`, complete or not at all.
pub fn save_tokenizer(path: impl AsRef<Path>) -> Result<()> {
    write_atomic(path, tokenizer_json()?.as_bytes())
}

/// Reads a `tokenizer.json` and checks that it is exactly this vocabulary: anything else would give actions another meaning.
pub fn load_tokenizer(path: impl AsRef<Path>) -> Result<Tokenizer> {
    let path = path.as_ref();
    let bytes = read_limited(path, TOKENIZER_BYTES)?;
    let found = Tokenizer::from_bytes(&bytes).map_err(|e| Error::file(path, format!("not a tokenizer: {e}")))?;
    let expected = tokenizer()?;
    let (expected_words, found_words) = (expected.get_vocab(true), found.get_vocab(true));
    if let Some((word, id)) = expected_words.iter().find(|(word, id)| found_words.get(*word) != Some(id)) {
        let found = found_words.get(word).map_or("none".to_owned(), u32::to_string);
        return Err(Error::file(path, format!("not the action vocabulary: expected id {id} for {word}, found {found}")));
    }
    if let Some(word) = found_words.keys().find(|word| !expected_words.contains_key(*word)) {
        return Err(Error::file(path, format!("not the action vocabulary: unexpected token {word:?}")));
    }
    let text = |tokenizer: &Tokenizer| tokenizer.to_string(false).map_err(|e| Error::file(path, e));
    if text(&expected)? != text(&found)? {
        return Err(Error::file(path, "not the action tokenizer: the tokens agree, the settings around them differ"));
    }
    Ok(found)
}

/// `ln p(class)` of every (component, class) pair, by token. Stable for any finite logits.
pub fn log_probabilities(logits: &[f32; LOGITS]) -> [f32; TOKENS] {
    let mut out = [0.0; TOKENS];
    for component in &COMPONENTS {
        let logits = &logits[component.logit..component.logit + component.logits()];
        let out = &mut out[component.token..component.token + component.classes as usize];
        if let [logit] = logits {
            out.copy_from_slice(&[-softplus(*logit), -softplus(-logit)]);
        } else {
            let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let log_sum = logits.iter().map(|l| (l - top).exp()).sum::<f32>().ln();
            out.iter_mut().zip(logits).for_each(|(out, logit)| *out = logit - top - log_sum);
        }
    }
    out
}

/// `ln(1 + e^x)` without overflow.
fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// The negative log-likelihood of an action in nats, per reported component ([`GROUP_NAMES`]); the buttons' eight add up.
pub fn nll(logits: &[f32; LOGITS], action: &Action) -> [f32; GROUPS] {
    let log_probabilities = log_probabilities(logits);
    let mut out = [0.0; GROUPS];
    for (i, token) in action.tokens().into_iter().enumerate() {
        out[group(i)] -= log_probabilities[token as usize];
    }
    out
}

/// The most likely class of every component on its own; the lowest where several are equal.
pub fn most_likely(logits: &[f32; LOGITS]) -> Action {
    let classes = std::array::from_fn(|i| {
        let component = COMPONENTS[i];
        let logits = &logits[component.logit..component.logit + component.logits()];
        match logits {
            [logit] => u8::from(*logit > 0.0),
            _ => (1..logits.len()).fold(0, |best, k| if logits[k] > logits[best] { k } else { best }) as u8,
        }
    });
    Action { classes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::numbers;

    fn random_action(next: &mut impl FnMut() -> f32) -> Action {
        Action::new(std::array::from_fn(|i| (next() * f32::from(COMPONENTS[i].classes)) as u8)).unwrap()
    }

    fn random_logits(next: &mut impl FnMut() -> f32, scale: f32) -> [f32; LOGITS] {
        std::array::from_fn(|_| (next() - 0.5) * scale)
    }

    #[test]
    fn every_class_survives_the_controller() {
        for (i, component) in COMPONENTS.iter().enumerate() {
            for class in 0..component.classes {
                let mut classes = Action::default().classes();
                classes[i] = class;
                let action = Action::new(classes).unwrap();
                assert_eq!(Action::from_controller(&action.to_controller()), action, "{} {class}", component.name);
            }
        }
    }

    #[test]
    fn classes_follow_the_recorded_values() {
        let class = |x: f32| Action::from_controller(&Controller { main_stick: [x, 0.0], ..Default::default() }).classes()[8];
        assert_eq!([-1.0, -0.07, -0.05, 0.0, 0.05, 0.0625, 0.9, 1.0].map(class), [0, 7, 8, 8, 8, 9, 15, 16]);
        for x in -80..=80 {
            let v = (f64::from(x) / 80.0 + 1.0) / 2.0;
            assert_eq!(class(x as f32 / 80.0), (16.0 * v + 0.5).floor() as u8, "{x}/80");
        }
        assert_eq!([-7.0, 3.8e22, f32::NAN, f32::INFINITY].map(class), [0, 16, 8, 8]);
        let shoulder = |shoulder| Action::from_controller(&Controller { shoulder, ..Default::default() }).classes()[12];
        assert_eq!([0.0, 0.12, 0.13, 0.5, 1.0, 9.0, -1.0, f32::NAN].map(shoulder), [0, 0, 1, 2, 4, 4, 0, 0]);
        assert_eq!(Action::from_controller(&Controller::default()), Action::default());
    }

    #[test]
    fn mirror_is_an_involution_and_touches_x_only() {
        let mut next = numbers(1);
        for _ in 0..1000 {
            let action = random_action(&mut next);
            let mirrored = action.mirror();
            assert_eq!(mirrored.mirror(), action);
            let (a, m) = (action.to_controller(), mirrored.to_controller());
            assert_eq!((m.main_stick[0], m.c_stick[0]), (-a.main_stick[0], -a.c_stick[0]));
            assert_eq!((m.buttons, m.main_stick[1], m.c_stick[1], m.shoulder), (a.buttons, a.main_stick[1], a.c_stick[1], a.shoulder));
        }
    }

    #[test]
    fn tokens_and_text_go_round() {
        let mut next = numbers(2);
        let tokenizer = tokenizer().unwrap();
        for _ in 0..200 {
            let action = random_action(&mut next);
            assert_eq!(Action::from_tokens(&action.tokens()).unwrap(), action);
            assert_eq!(Action::from_ids(&action.to_ids()).unwrap(), action);
            let text = action.to_string();
            assert_eq!(text.parse::<Action>().unwrap(), action);
            assert_eq!(tokenizer.encode(text.as_str(), false).unwrap().get_ids(), action.tokens());
            assert_eq!(tokenizer.decode(&action.tokens(), false).unwrap(), text);
        }
        let text = Action::default().to_string();
        assert_eq!(text, "A:up B:up X:up Y:up Z:up L:up R:up D_up:up main_x:+0 main_y:+0 c_x:+0 c_y:+0 shoulder:0.00");
        assert_eq!(token_name(COMPONENTS[8].token + 10).unwrap(), "main_x:+0.25");
        assert_eq!(token_name(TOKENS), None);
    }

    #[test]
    fn wrong_tokens_are_refused() {
        let good = Action::default();
        let mut tokens = good.tokens();
        assert!(Action::from_tokens(&tokens[1..]).is_err());
        tokens.swap(0, 1);
        assert!(Action::from_tokens(&tokens).unwrap_err().to_string().contains("expected a token of A, found B:up"));
        tokens[0] = u32::MAX;
        assert!(Action::from_tokens(&tokens).is_err());
        assert!("A:up".parse::<Action>().is_err());
        assert!(good.to_string().replace("+0", "+0.3").parse::<Action>().unwrap_err().to_string().contains("+0.3"));
        let mut ids = good.to_ids();
        ids[12] = 5;
        assert!(Action::from_ids(&ids).unwrap_err().to_string().contains("shoulder"));
        ids[12] = SAMPLE;
        assert!(Action::from_ids(&ids).is_err());
    }

    #[test]
    fn the_tokenizer_file_goes_round_and_others_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        save_tokenizer(&path).unwrap();
        let loaded = load_tokenizer(&path).unwrap();
        let action = random_action(&mut numbers(3));
        assert_eq!(loaded.encode(action.to_string(), false).unwrap().get_ids(), action.tokens());
        assert_eq!(loaded.encode("A:sideways", false).unwrap().get_ids(), [TOKENS as u32]);

        let text = std::fs::read_to_string(&path).unwrap();
        let swapped = text.replace("\"A:up\": 0", "\"A:up\": 1").replace("\"A:down\": 1", "\"A:down\": 0");
        let no_split = text.replace("WhitespaceSplit", "Whitespace");
        let hostile = [swapped, no_split, text.replace("B:up", "B:at_rest"), text[..text.len() / 2].to_owned(), "{}".to_owned()];
        for hostile in hostile.iter().chain([&String::new()]) {
            assert_ne!(hostile, &text, "the replacement must have an effect");
            std::fs::write(&path, hostile).unwrap();
            let error = load_tokenizer(&path).unwrap_err().to_string();
            assert!(error.contains("tokenizer.json") && error.lines().count() == 1, "{error}");
        }
        assert!(load_tokenizer(folder.path().join("none.json")).is_err());
    }

    #[test]
    fn probabilities_sum_to_one_and_match_the_likelihood() {
        let mut next = numbers(4);
        for scale in [1.0, 20.0, 400.0] {
            let logits = random_logits(&mut next, scale);
            let log_p = log_probabilities(&logits);
            for c in &COMPONENTS {
                let sum: f32 = log_p[c.token..c.token + c.classes as usize].iter().map(|p| p.exp()).sum();
                assert!((sum - 1.0).abs() < 1e-5, "{} sums to {sum}", c.name);
            }
            let best = most_likely(&logits);
            let best_nll = nll(&logits, &best);
            for _ in 0..100 {
                let action = random_action(&mut next);
                let nll = nll(&logits, &action);
                assert!(nll.iter().zip(best_nll).all(|(n, best)| n.is_finite() && *n >= best - 1e-4));
                let total: f32 = action.tokens().iter().map(|t| -log_p[*t as usize]).sum();
                assert!((nll.iter().sum::<f32>() - total).abs() <= 1e-5 * total.max(1.0));
            }
        }
        let even = nll(&[0.0; LOGITS], &Action::default());
        let expected = [8.0 * 2f32.ln(), 17f32.ln(), 17f32.ln(), 17f32.ln(), 17f32.ln(), 5f32.ln()];
        assert!(even.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5), "{even:?}");
    }
}
