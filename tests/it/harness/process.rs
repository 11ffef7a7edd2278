//! A child process whose output is read as it comes, and which is always waited for.

use std::fs::{self, DirEntry};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use dashscope_proxy::clock;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use parking_lot::{Condvar, Mutex};

pub(crate) struct Process {
    child: Child,
    exited: Option<ExitStatus>,
    printed: Arc<Printed>,
    pumps: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Printed {
    text: Mutex<Text>,
    grown: Condvar,
}

#[derive(Default)]
struct Text {
    stdout: String,
    stderr: String,
    /// How many of the two are at their end. Both are when the process has exited.
    ended: usize,
}

impl Process {
    pub(crate) fn start(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        let printed = Arc::<Printed>::default();
        let stdout = child.stdout.take().expect("stdout is piped");
        let stderr = child.stderr.take().expect("stderr is piped");
        let pumps = vec![
            pump(stdout, &printed, |text| &mut text.stdout),
            pump(stderr, &printed, |text| &mut text.stderr),
        ];
        Self { child, exited: None, printed, pumps }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// What came over stderr.
    pub(crate) fn log(&self) -> String {
        self.printed.text.lock().stderr.clone()
    }

    /// How many bytes came over stderr.
    pub(crate) fn log_length(&self) -> usize {
        self.printed.text.lock().stderr.len()
    }

    /// Standard output and standard error.
    pub(crate) fn output(&self) -> (String, String) {
        let text = self.printed.text.lock();
        (text.stdout.clone(), text.stderr.clone())
    }

    /// Waits until the log is as wanted or can grow no more; says whether it is.
    pub(crate) fn wait_log(&self, limit: Duration, wanted: impl Fn(&str) -> bool) -> bool {
        self.wait(limit, |text| wanted(&text.stderr) || text.ended == 2);
        wanted(&self.printed.text.lock().stderr)
    }

    /// As [`Process::wait_log`], for standard output.
    pub(crate) fn wait_stdout(&self, limit: Duration, wanted: impl Fn(&str) -> bool) -> bool {
        self.wait(limit, |text| wanted(&text.stdout) || text.ended == 2);
        wanted(&self.printed.text.lock().stdout)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        assert!(self.exited.is_none(), "{signal} to a process that has exited");
        let pid = i32::try_from(self.child.id()).expect("a process id");
        kill(Pid::from_raw(pid), signal).expect("a signal to our own child");
    }

    /// Waits until every thread is stopped (`T`), as /proc tells.
    pub(crate) fn wait_frozen(&self, limit: Duration) {
        let deadline = clock::instant() + limit;
        let is_stopped = |task: std::io::Result<DirEntry>| {
            let stat = fs::read_to_string(task.expect("a thread").path().join("stat"));
            stat.is_ok_and(|stat| {
                stat.rsplit_once(") ").is_some_and(|(_, end)| end.starts_with('T'))
            })
        };
        let tasks = format!("/proc/{}/task", self.id());
        while !fs::read_dir(&tasks).expect("our own child").all(is_stopped) {
            assert!(clock::instant() < deadline, "the process does not stop");
            std::thread::yield_now();
        }
    }

    pub(crate) fn has_exited(&mut self) -> bool {
        if self.exited.is_none() {
            self.exited = self.child.try_wait().expect("the state of our own child");
        }
        self.exited.is_some()
    }

    /// Its output ends when it exits, so that is what is waited for.
    pub(crate) fn wait_exit(&mut self, limit: Duration) -> Option<ExitStatus> {
        if self.exited.is_none() && self.wait(limit, |text| text.ended == 2) {
            self.exited = Some(self.child.wait().expect("the end of our own child"));
        }
        self.exited
    }

    /// Kills it if need be, and waits for it and for the last of its output.
    pub(crate) fn kill(&mut self) {
        if self.exited.is_none() {
            // It may have exited in this moment.
            let _ = self.child.kill();
            self.exited = self.child.wait().ok();
        }
        for pump in self.pumps.drain(..) {
            let _ = pump.join();
        }
    }

    fn wait(&self, limit: Duration, wanted: impl Fn(&Text) -> bool) -> bool {
        let deadline = clock::instant() + limit;
        let mut text = self.printed.text.lock();
        while !wanted(&text) {
            if self.printed.grown.wait_until(&mut text, deadline).timed_out() {
                return wanted(&text);
            }
        }
        true
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn pump(
    from: impl Read + Send + 'static,
    printed: &Arc<Printed>,
    to: fn(&mut Text) -> &mut String,
) -> JoinHandle<()> {
    let printed = Arc::clone(printed);
    std::thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        while from.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
            to(&mut printed.text.lock()).push_str(&String::from_utf8_lossy(&line));
            printed.grown.notify_all();
            line.clear();
        }
        printed.text.lock().ended += 1;
        printed.grown.notify_all();
    })
}
