//! Paths.

use crate::fault::{Fault, Kind, one_line};
use crate::inference::unsupported;
use crate::keys::Role;
use crate::operations::check_version;
use hyper::Method;
use std::borrow::Cow;

/// A page.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Route<'a> {
    Server,
    Live,
    Ready,
    Metrics,
    /// What pages there are, for people.
    Docs,
    /// The same for programs.
    OpenApi,
    Model(&'a str),
    ModelReady(&'a str),
    Config(&'a str),
    /// Of one model, or of all.
    Stats(Option<&'a str>),
    Infer(&'a str),
    Index,
    Load(&'a str),
    Unload(&'a str),
    Sequence(&'a str, Cow<'a, str>),
    State(&'a str, Cow<'a, str>),
    Fork(&'a str, Cow<'a, str>),
    /// The region of that name, or all.
    Regions(Option<Cow<'a, str>>),
    Register(Cow<'a, str>),
    Unregister(Option<Cow<'a, str>>),
    Logging,
    /// For one model, or for all.
    Trace(Option<&'a str>),
    /// Regions of memory on a GPU: there are none.
    CudaRegions,
}

impl<'a> Route<'a> {
    /// The page of a path.
    pub fn of(path: &'a str) -> Result<Self, Fault> {
        let mut parts = [""; 8];
        let mut count = 0;
        for part in path.trim_start_matches('/').trim_end_matches('/').split('/') {
            // A longer path is none of ours.
            let Some(slot) = parts.get_mut(count) else { return Err(nowhere(path)) };
            *slot = part;
            count += 1;
        }
        match &parts[..count] {
            ["v2"] => Ok(Self::Server),
            ["metrics"] => Ok(Self::Metrics),
            ["v2", "docs"] => Ok(Self::Docs),
            ["v2", "docs", "openapi.json"] => Ok(Self::OpenApi),
            ["v2", "health", "live"] => Ok(Self::Live),
            ["v2", "health", "ready"] => Ok(Self::Ready),
            ["v2", "models", "stats"] => Ok(Self::Stats(None)),
            ["v2", "logging"] => Ok(Self::Logging),
            ["v2", "trace", "setting"] => Ok(Self::Trace(None)),
            ["v2", "repository", "index"] => Ok(Self::Index),
            ["v2", "repository", "models", name, "load"] => Ok(Self::Load(name)),
            ["v2", "repository", "models", name, "unload"] => Ok(Self::Unload(name)),
            ["v2", "models", name, "versions", version, rest @ ..] if is_version(version) => {
                check_version(name, version)?;
                Self::of_model(name, rest).ok_or_else(|| nowhere(path))
            }
            ["v2", "systemsharedmemory", rest @ ..] => Self::of_memory(rest).ok_or_else(|| nowhere(path)),
            ["v2", "cudasharedmemory", "status"] => Ok(Self::CudaRegions),
            ["v2", "cudasharedmemory", ..] => Err(unsupported("shared memory on a GPU")),
            ["v2", "models", name, rest @ ..] => Self::of_model(name, rest).ok_or_else(|| nowhere(path)),
            _ => Err(nowhere(path)),
        }
    }

    fn of_model(name: &'a str, rest: &[&'a str]) -> Option<Self> {
        Some(match rest {
            [] => Self::Model(name),
            ["ready"] => Self::ModelReady(name),
            ["config"] => Self::Config(name),
            ["stats"] => Self::Stats(Some(name)),
            ["trace", "setting"] => Self::Trace(Some(name)),
            ["infer"] => Self::Infer(name),
            ["sequences", id] => Self::Sequence(name, decoded(id)?),
            ["sequences", id, "state"] => Self::State(name, decoded(id)?),
            ["sequences", id, "fork"] => Self::Fork(name, decoded(id)?),
            _ => return None,
        })
    }

    fn of_memory(rest: &[&'a str]) -> Option<Self> {
        Some(match rest {
            ["status"] => Self::Regions(None),
            ["unregister"] => Self::Unregister(None),
            ["region", name, "status"] => Self::Regions(Some(decoded(name)?)),
            ["region", name, "register"] => Self::Register(decoded(name)?),
            ["region", name, "unregister"] => Self::Unregister(Some(decoded(name)?)),
            _ => return None,
        })
    }

    /// The form of its path, whatever names stand in it.
    pub fn template(&self) -> &'static str {
        match self {
            Self::Server => "/v2",
            Self::Live => "/v2/health/live",
            Self::Ready => "/v2/health/ready",
            Self::Metrics => "/metrics",
            Self::Docs => "/v2/docs",
            Self::OpenApi => "/v2/docs/openapi.json",
            Self::Model(_) => "/v2/models/{model}",
            Self::ModelReady(_) => "/v2/models/{model}/ready",
            Self::Config(_) => "/v2/models/{model}/config",
            Self::Stats(None) => "/v2/models/stats",
            Self::Stats(Some(_)) => "/v2/models/{model}/stats",
            Self::Infer(_) => "/v2/models/{model}/infer",
            Self::Index => "/v2/repository/index",
            Self::Load(_) => "/v2/repository/models/{model}/load",
            Self::Unload(_) => "/v2/repository/models/{model}/unload",
            Self::Sequence(..) => "/v2/models/{model}/sequences/{id}",
            Self::State(..) => "/v2/models/{model}/sequences/{id}/state",
            Self::Fork(..) => "/v2/models/{model}/sequences/{id}/fork",
            Self::Regions(None) => "/v2/systemsharedmemory/status",
            Self::Regions(Some(_)) => "/v2/systemsharedmemory/region/{region}/status",
            Self::Register(_) => "/v2/systemsharedmemory/region/{region}/register",
            Self::Unregister(None) => "/v2/systemsharedmemory/unregister",
            Self::Unregister(Some(_)) => "/v2/systemsharedmemory/region/{region}/unregister",
            Self::Logging => "/v2/logging",
            Self::Trace(None) => "/v2/trace/setting",
            Self::Trace(Some(_)) => "/v2/models/{model}/trace/setting",
            Self::CudaRegions => "/v2/cudasharedmemory/status",
        }
    }

    /// What a key has to be good for; `None` where there need be none.
    pub fn role(&self) -> Option<Role> {
        match self {
            Self::Live | Self::Ready => None,
            Self::Load(_) | Self::Unload(_) | Self::Logging | Self::Trace(_) => Some(Role::Admin),
            Self::Regions(_) | Self::Register(_) | Self::Unregister(_) | Self::CudaRegions => Some(Role::Admin),
            _ => Some(Role::Infer),
        }
    }

    /// The methods that the page takes.
    pub fn methods(&self) -> &'static [Method] {
        match self {
            Self::Infer(_) | Self::Index | Self::Load(_) | Self::Unload(_) | Self::Fork(..) | Self::Register(_) | Self::Unregister(_) => {
                &[Method::POST]
            }
            Self::Logging | Self::Trace(_) => &[Method::GET, Method::POST],
            Self::Sequence(..) => &[Method::GET, Method::DELETE],
            Self::State(..) => &[Method::GET, Method::PUT],
            _ => &[Method::GET],
        }
    }
}

fn is_version(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn nowhere(path: &str) -> Fault {
    Fault::new(Kind::NotFound, format!("there is no page {}", one_line(path)))
}

/// A part of a path, its percent signs resolved; `None` where that is no text.
fn decoded(part: &str) -> Option<Cow<'_, str>> {
    if !part.contains('%') {
        return Some(Cow::Borrowed(part));
    }
    let (mut bytes, mut rest) = (Vec::new(), part.as_bytes());
    while let Some((byte, behind)) = rest.split_first() {
        rest = behind;
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let (digits, behind) = rest.split_at_checked(2)?;
        let digits = std::str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = behind;
    }
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_of_a_path_is_a_path_of_its_page() {
        for path in
            ["/v2/models/m/infer", "/v2/models/m/versions/1/infer", "/v2/models/m/sequences/7/state", "/v2/models/stats", "/metrics"]
        {
            let template = Route::of(path).map(|route| route.template()).unwrap();
            let filled = template.replace("{model}", "m").replace("{id}", "7");
            assert_eq!(Route::of(&filled).map_err(|fault| fault.kind), Route::of(path).map_err(|fault| fault.kind));
        }
    }

    #[test]
    fn every_path_has_one_page() {
        let page = |path| Route::of(path).map_err(|fault| fault.kind);
        assert_eq!(page("/v2"), Ok(Route::Server));
        assert_eq!(page("/v2/"), Ok(Route::Server));
        assert_eq!(page("/v2/models/stats"), Ok(Route::Stats(None)));
        assert_eq!(page("/v2/models/m"), Ok(Route::Model("m")));
        assert_eq!(page("/v2/models/m/versions/1"), Ok(Route::Model("m")));
        assert_eq!(page("/v2/models/m/versions/1/infer"), Ok(Route::Infer("m")));
        assert_eq!(page("/v2/models/m/stats"), Ok(Route::Stats(Some("m"))));
        assert_eq!(page("/v2/models/m/sequences/a%2Fb"), Ok(Route::Sequence("m", Cow::Borrowed("a/b"))));
        assert_eq!(page("/v2/systemsharedmemory/region/a/register"), Ok(Route::Register(Cow::Borrowed("a"))));
        assert_eq!(page("/v2/systemsharedmemory/status"), Ok(Route::Regions(None)));
        assert_eq!(page("/v2/models/m/sequences/7/state"), Ok(Route::State("m", Cow::Borrowed("7"))));
        for path in [
            "/",
            "/v1",
            "/v2/models",
            "/v2/models/m/versions/2/infer",
            "/v2/models/m/versions/x",
            "/v2/models/m/versions",
            "/v2/models/m/infer/more",
            "/v2/models/m/sequences/%",
            "/v2/models/m/sequences/%g0",
            "/v2/models/m/sequences/%ff",
            "/v2/systemsharedmemory/region/a",
            "/v2/a/b/c/d/e/f/g/h/i",
        ] {
            assert_eq!(page(path), Err(Kind::NotFound), "{path}");
        }
    }
}
