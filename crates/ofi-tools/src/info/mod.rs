//! `fi_info`: lists the offers of this host for given hints, and the reasons against all others.

use std::process::ExitCode;

use clap::Parser;
use ofi::raw::{Errno, GetinfoFlags, Hints, Offers, Request, Version};
use serde_json::{Value, json};

use crate::exit;
use crate::failure::{Failure, Result, exit_code};
use crate::output;

mod json;
mod names;
mod options;
mod text;

pub(crate) use options::Options;
use options::Show;

/// The program.
pub fn main() -> ExitCode {
    ofi::log_from_env();
    match Options::try_parse() {
        Ok(options) => run(&options).unwrap_or_else(|failure| exit::end("fi_info", Err(failure))),
        Err(error) => exit::usage(&error),
    }
}

fn run(options: &Options) -> Result<ExitCode> {
    let done = match options.show() {
        Show::Version if options.json => output::print_json(&json::version()),
        Show::Version => output::print(&text::version()),
        Show::Settings(filter) => settings(options, filter),
        Show::Providers => return providers(options),
        Show::Long(filter) => return interfaces(options, |offers| text::long(&offers.infos, filter), filter),
        Show::Short => return interfaces(options, |offers| text::short(&offers.infos), None),
    };
    done.map(|()| ExitCode::SUCCESS)
}

fn settings(options: &Options, filter: Option<&str>) -> Result<()> {
    ofi::provider_names(); // providers register their settings
    let all = ofi::config::list();
    if options.json {
        let some = all.iter().filter(|setting| text::contains(&setting.env, filter));
        return output::print_json(&json!({ "settings": some.map(json::setting).collect::<Vec<_>>() }));
    }
    output::print(&text::settings(&all, filter))
}

/// The providers that neither `FI_PROVIDER` nor `-p` excludes; other hints do not matter, as in C.
fn providers(options: &Options) -> Result<ExitCode> {
    const BY_NAME: [&str; 2] = ["FI_PROVIDER", "fabric_attr.prov_name"];
    let hints = options.hints()?;
    let name = hints.map_or_else(String::new, |hints| hints.info.fabric_attr.prov_name);
    let hints = Hints::new().provider(name);
    let offers = explain(None, None, GetinfoFlags::PROV_ATTR_ONLY, Some(&hints))?;
    let excluded: Vec<_> =
        offers.refusals.into_iter().filter(|refusal| BY_NAME.contains(&refusal.field)).collect();
    let mut providers = ofi::provider_names();
    providers.retain(|(name, _)| excluded.iter().all(|refusal| refusal.provider != *name));
    if options.json {
        let list: Vec<Value> = providers.iter().map(json::provider).collect();
        let refusals: Vec<Value> = excluded.iter().map(json::refusal).collect();
        output::print_json(&json!({ "providers": list, "refusals": refusals }))?;
    } else {
        let refused = if options.explain { text::refusals(&excluded) } else { String::new() };
        output::print(&(text::providers(&providers) + &refused))?;
    }
    Ok(if providers.is_empty() { nothing(excluded.len(), options) } else { ExitCode::SUCCESS })
}

fn interfaces(options: &Options, text: impl Fn(&Offers) -> String, filter: Option<&str>) -> Result<ExitCode> {
    let hints = options.hints()?;
    let (node, service, source) = options.node();
    let flags = if source { GetinfoFlags::SOURCE } else { GetinfoFlags::empty() };
    let offers = explain(node, service, flags, hints.as_ref())?;
    if options.json {
        let some = offers.infos.iter().filter(|info| text::contains(&info.to_string(), filter));
        let infos: Vec<Value> = some.map(json::info).collect();
        let refusals: Vec<Value> = offers.refusals.iter().map(json::refusal).collect();
        output::print_json(&json!({ "infos": infos, "refusals": refusals }))?;
    } else {
        let refused = if options.explain { text::refusals(&offers.refusals) } else { String::new() };
        output::print(&(text(&offers) + &refused))?;
    }
    let found = !offers.infos.is_empty();
    Ok(if found { ExitCode::SUCCESS } else { nothing(offers.refusals.len(), options) })
}

fn explain(
    node: Option<&str>,
    service: Option<&str>,
    flags: GetinfoFlags,
    hints: Option<&Hints>,
) -> Result<Offers> {
    let request = Request { version: Version::API, node, service, flags, hints };
    ofi::explain(&request).map_err(Failure::stack("fi_getinfo"))
}

/// C's line for "nothing found", and a pointer to the reasons.
fn nothing(refusals: usize, options: &Options) -> ExitCode {
    let errno = Errno::ENODATA;
    output::tell(&format!("fi_getinfo: -{} ({errno})", errno.get()));
    if !options.explain && !options.json && refusals > 0 {
        output::tell(&format!(
            "{refusals} refused; --explain shows the field, the wanted value and the offered one of each"
        ));
    }
    ExitCode::from(exit_code(errno.get()))
}
