//! `status`: how every slot stands.

use std::sync::Arc;

use super::{CommandError, Report, Source, client, pretty, table};
use crate::admin;
use crate::clock;
use crate::config::Config;
use crate::policy::scheduler::Scheduler;
use crate::policy::state::StateFile;
use crate::store;

pub(super) fn run(config: &Config, json: bool, colours: bool) -> Result<Report, CommandError> {
    let (source, mut status) = match client::ask(config, "GET", "/models/status", b"")? {
        Some(answer) => (Source::Proxy(answer.address), answer.body),
        None => {
            let scheduler = scheduler(config, store::peek(&config.state_path)?);
            let status = admin::status::pool(&scheduler, clock::moment());
            (source(config), status)
        }
    };
    let text = if json {
        status["source"] = source.to_json();
        pretty(&status)
    } else {
        table::render(status, &source, colours).map_err(|error| {
            CommandError::Unavailable(format!("{source} tells its status in another way: {error}"))
        })?
    };
    Ok(Report { text, exit_code: 0 })
}

/// The state file, which another process may have.
fn source(config: &Config) -> Source {
    let (file, asked) = (config.state_path.clone(), client::shown_address(config));
    if store::is_taken(&file) { Source::Taken { file, asked } } else { Source::File(file) }
}

/// The pool as a proxy would have it that starts now.
pub(super) fn scheduler(config: &Config, file: StateFile) -> Scheduler {
    let pool = Arc::new(config.pool());
    let mut scheduler = Scheduler::new(pool, config.cooldown, file, clock::now());
    scheduler.set_guard(config.guard(), clock::now());
    scheduler
}
