//! Pages that stand alone: one file of HTML without a font, script or picture of another place, light or dark as the system is.
//!
//! ```
//! use candle_models::html;
//!
//! let page = html::head("losses of <run 7>", "h1 { color: var(--muted); }") + "<h1>Losses</h1>\n</body>\n</html>\n";
//! assert!(page.contains("<title>losses of &lt;run 7&gt;</title>"));
//! ```

use crate::{Error, Result};
use serde::Serialize;

/// Colours by the names that the pages use, and the body.
const STYLE: &str = include_str!("html.css");

/// The page up to and with the tag of its body. The title is text; `style` follows the common style. The page forbids itself to ask
/// any other place for anything.
pub fn head(title: &str, style: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n\
         <title>{}</title>\n<style>\n{STYLE}{style}</style>\n</head>\n<body>\n",
        escape(title)
    )
}

/// Text that stands for itself in HTML and SVG, in attributes too.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

/// An element that holds data for the page's script, which finds it by its id and parses its text as JSON. No text in it can end the
/// element.
///
/// # Errors
/// If the value cannot be JSON.
pub fn data(id: &str, value: &impl Serialize) -> Result<String> {
    let json = serde_json::to_string(value).map_err(|e| Error::Input(format!("data of a page: {e}")))?;
    // A `<` is in texts only, where JSON has another way to write it.
    Ok(format!("<script type=\"application/json\" id=\"{}\">{}</script>\n", escape(id), json.replace('<', "\\u003c")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_becomes_markup() {
        let evil = "</script><script>alert('x')</script><!--&\"";
        assert_eq!(escape(evil), "&lt;/script&gt;&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&lt;!--&amp;&quot;");
        assert!(!head(evil, "").contains("<script"));
        let element = data("names", &[evil]).unwrap();
        let json = element.strip_prefix("<script type=\"application/json\" id=\"names\">").unwrap().strip_suffix("</script>\n").unwrap();
        assert!(!json.contains('<'), "{json}");
        assert_eq!(serde_json::from_str::<Vec<String>>(json).unwrap(), [evil]);
    }
}
