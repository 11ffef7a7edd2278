//! A candidate as a process: started, watched, ended and waited for.

use std::fs;
use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use dashscope_proxy::clock;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use crate::cores::Places;
use crate::usage::{self, Usage};
use crate::{Failure, LIMIT};

/// How long a candidate may take to end when it is asked to, before it is made to.
const GRACE: Duration = Duration::from_secs(2);

/// How much of the log is kept for a failure's message.
const LOG_BYTES: usize = 8 * 1024;

/// A new folder for a candidate's files; dropping it removes them.
///
/// Under the target folder: a real disk, where /tmp is often memory and fsync is free.
#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Result<Self, Failure> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("bench-{}-{count}", std::process::id()));
        fs::create_dir_all(&path)
            .map_err(|cause| format!("failed to make `{}`: {cause}", path.display()))?;
        left().1.push(path.clone());
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file and gives its path.
    pub(crate) fn write(&self, name: &str, content: &str) -> Result<PathBuf, Failure> {
        let path = self.0.join(name);
        fs::write(&path, content)
            .map_err(|cause| format!("failed to write `{}`: {cause}", path.display()))?;
        Ok(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Nothing more can be done about what cannot be removed.
        let _ = fs::remove_dir_all(&self.0);
        left().1.retain(|folder| *folder != self.0);
    }
}

/// What has to go when this process is interrupted: process groups by their leader, and folders.
static LEFT: Mutex<(Vec<Pid>, Vec<PathBuf>)> = Mutex::new((Vec::new(), Vec::new()));

/// Ends every candidate at once and removes their files.
pub(crate) fn clear_away() {
    let (groups, folders) = &*left();
    for group in groups {
        let _ = killpg(*group, Signal::SIGKILL);
    }
    for folder in folders {
        let _ = fs::remove_dir_all(folder);
    }
}

fn left() -> MutexGuard<'static, (Vec<Pid>, Vec<PathBuf>)> {
    LEFT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running candidate with whatever processes it has made; dropping it ends them and removes
/// the folder.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    /// The process and the group that it leads.
    id: Pid,
    log: Arc<Log>,
    /// From before the process was made until it listened.
    pub(crate) start_time: Duration,
    // Dropped last: its files are in use until the processes are gone.
    _folder: Folder,
}

impl Process {
    /// Starts `command` in `folder` and waits until `is_up` gives something.
    pub(crate) fn start<T>(
        mut command: Command,
        folder: Folder,
        places: Places,
        is_up: impl Fn(&Log) -> Option<T>,
    ) -> Result<(Self, T), Failure> {
        command
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // A group of its own, so that its children can be killed with it.
            .process_group(0);
        let program = command.get_program().to_string_lossy().into_owned();
        let started = clock::instant();
        let spawned = {
            let _confined = places.confine_candidate()?;
            command.spawn()
        };
        let mut child = spawned.map_err(|cause| format!("failed to start `{program}`: {cause}"))?;
        let id = Pid::from_raw(i32::try_from(child.id()).map_err(|cause| cause.to_string())?);
        left().0.push(id);
        let log = Arc::new(Log::default());
        if let Some(stderr) = child.stderr.take() {
            let log = Arc::clone(&log);
            thread::spawn(move || log.fill(stderr));
        }
        // From here on `process` owns the child: every return ends it.
        let mut process = Self { child, id, log, start_time: Duration::ZERO, _folder: folder };
        loop {
            let found = is_up(&process.log);
            process.start_time = started.elapsed();
            if let Some(found) = found {
                return Ok((process, found));
            }
            let has_ended = matches!(process.child.try_wait(), Ok(Some(_)));
            if has_ended || process.start_time > LIMIT {
                return Err(format!("`{program}` does not listen\n{}", process.log.end()));
            }
            thread::park_timeout(Duration::from_micros(200));
        }
    }

    /// What it and its children use; `None` where there is no /proc.
    pub(crate) fn usage(&self) -> Option<Usage> {
        usage::of_group(self.id)
    }

    /// The end of what it logged.
    pub(crate) fn log(&self) -> String {
        self.log.end()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Asked first, so that it waits for its own children. Errors mean that it has ended
        // already, or that nothing more can be done about it.
        let _ = kill(self.id, Signal::SIGTERM);
        let deadline = clock::instant() + GRACE;
        while matches!(self.child.try_wait(), Ok(None)) && clock::instant() < deadline {
            thread::park_timeout(Duration::from_millis(1));
        }
        let _ = killpg(self.id, Signal::SIGKILL);
        let _ = self.child.wait();
        left().0.retain(|group| *group != self.id);
    }
}

/// What a process says on standard error.
#[derive(Debug, Default)]
pub(crate) struct Log(Mutex<Vec<u8>>);

impl Log {
    /// Empties the pipe in large pieces, so that a line per request costs the machine little.
    fn fill(&self, mut stderr: impl Read) {
        let mut piece = vec![0; 64 * 1024];
        while let Ok(count @ 1..) = stderr.read(&mut piece) {
            let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            log.extend_from_slice(&piece[..count]);
            let surplus = log.len().saturating_sub(LOG_BYTES);
            log.drain(..surplus);
        }
    }

    pub(crate) fn end(&self) -> String {
        let log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&log).into_owned()
    }
}

/// A port that nobody uses at this moment, for programs that cannot tell which one they chose.
pub(crate) fn free_port() -> Result<SocketAddr, Failure> {
    TcpListener::bind(("127.0.0.1", 0))
        .and_then(|listener| listener.local_addr())
        .map_err(|cause| format!("failed to find a free port: {cause}"))
}

/// Whether something listens there.
pub(crate) fn answers(address: SocketAddr) -> Option<()> {
    TcpStream::connect(address).ok().map(drop)
}

/// The first of the usual places that has this program. Users' paths lack `sbin`.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/opt/homebrew/bin"].map(PathBuf::from));
    places.map(|place| place.join(name)).find(|program| program.is_file())
}
