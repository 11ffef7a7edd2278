//! Root on a state file in another user's folder: whatever that user has put there, nothing of
//! root's is followed, made, read or given away. Needs root; says so where it is not.

#![allow(clippy::unwrap_used, reason = "the helpers of tests panic as tests do")]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use dashscope_proxy::standin::StandIn;
use nix::unistd::Uid;
use serde_json::json;

use crate::envelope::CHAT;
use crate::failover::{BODY, exhausted};
use crate::harness::{Builder, Folder, LIMIT, Process, Proxy, get, key_hash, post};

/// A user who need not exist.
const USER: u32 = 61_234;
const GROUP: u32 = 61_235;

/// A user's home, and a folder of root's that nobody else may enter.
struct Scene {
    folder: Folder,
}

impl Scene {
    /// `None` where we are not root.
    fn new() -> Option<Self> {
        if !Uid::effective().is_root() {
            #[expect(clippy::print_stderr, reason = "why a test tests nothing")]
            {
                eprintln!("skipped: only root can be led astray");
            }
            return None;
        }
        let folder = Folder::new();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["home", "home/data", "roots", "anybodys"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        let scene = Self { folder };
        scene.give("home");
        scene.give("home/data");
        scene.chmod("roots", 0o700);
        scene.chmod("anybodys", 0o777);
        for name in ["roots/secret", "roots/state.json"] {
            fs::write(scene.path(name), state()).unwrap();
            scene.chmod(name, 0o600);
        }
        Some(scene)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn give(&self, name: &str) {
        chown(self.path(name), Some(USER), Some(GROUP)).unwrap();
    }

    fn chmod(&self, name: &str, mode: u32) {
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }

    /// A link of the user's.
    fn link(&self, name: &str, target: &Path) {
        symlink(target, self.path(name)).unwrap();
        std::os::unix::fs::lchown(self.path(name), Some(USER), Some(GROUP)).unwrap();
    }

    /// A file of the user's.
    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
        self.give(name);
    }

    /// Everything that is not the user's: names, owners, modes, contents.
    fn outside(&self) -> Vec<String> {
        let mut seen = Vec::new();
        for folder in ["roots", "anybodys"].map(|name| self.path(name)) {
            for entry in fs::read_dir(&folder).unwrap().flatten() {
                let it = entry.metadata().unwrap();
                let content = fs::read_to_string(entry.path()).unwrap_or_default();
                let (path, owner) = (entry.path(), (it.uid(), it.gid(), it.mode(), it.nlink()));
                seen.push(format!("{} {owner:?} {content}", path.display()));
            }
        }
        seen.sort();
        seen
    }

    /// Every command, and the service, on this state file. They may do their work or refuse it.
    fn try_everything(&self, state: &Path) {
        let standin = StandIn::start().unwrap();
        let before = self.outside();
        for args in
            [&["status"][..], &["check"], &["reset", "--all"], &["disable", "--key=0"], &["enable"]]
        {
            let output = builder(&standin, state).run(args);
            let code = output.status.code();
            assert!(matches!(code, Some(0 | 1 | 74)), "{args:?}: {output:?}");
            assert_eq!(self.outside(), before, "{args:?}: {output:?}");
        }
        // Where it does not start, its output ends.
        let service = Process::start(builder(&standin, state).command());
        service.wait_log(LIMIT, |log| log.contains(" listening "));
        drop(service);
        assert_eq!(self.outside(), before, "the service");
    }
}

fn builder<'a>(standin: &'a StandIn, state: &Path) -> Builder<'a> {
    Proxy::builder(standin).env("STATE_PATH", state.display().to_string())
}

/// A state in which a slot of the pool cools.
fn state() -> String {
    let hash = key_hash("k1");
    json!({"version": 1, "runtimeState": {}, "modelState": {format!("{hash}:m1"): {
        "keyHash": hash, "modelId": "m1", "cooldownUntil": 4_102_444_800_000_u64,
        "failureCount": 1, "lastError": "of root's", "lastUsedAt": null, "updatedAt": 1,
    }}})
    .to_string()
}

#[test]
fn no_link_of_a_users_leads_root_out_of_the_folder() {
    let name = |suffix: &str| format!("home/data/state.json{suffix}");
    for target in ["roots/secret", "roots/new", "anybodys/new", "roots/state.json"] {
        for suffix in ["", ".lock", ".1.1700000000000.tmp", ".bak"] {
            for content in [state(), "torn {".to_owned()] {
                let Some(scene) = Scene::new() else { return };
                let target = scene.path(target);
                if !suffix.is_empty() {
                    scene.write(&name(""), &content);
                }
                scene.link(&name(suffix), &target);
                scene.try_everything(&scene.path(&name("")));
            }
        }
    }
}

#[test]
fn no_folder_of_a_users_leads_root_to_another() {
    for target in ["roots", "anybodys", "roots/missing"] {
        let Some(scene) = Scene::new() else { return };
        fs::remove_dir(scene.path("home/data")).unwrap();
        scene.link("home/data", &scene.path(target));
        scene.try_everything(&scene.path("home/data/state.json"));
    }
}

#[test]
fn a_hard_link_of_a_users_to_a_file_of_roots_is_neither_read_nor_written() {
    let Some(scene) = Scene::new() else { return };
    fs::hard_link(scene.path("roots/secret"), scene.path("home/data/state.json")).unwrap();
    scene.try_everything(&scene.path("home/data/state.json"));
    assert!(!scene.path("home/data/state.json.bak").exists());
}

#[test]
fn in_a_folder_in_which_anybody_may_write_root_follows_nothing() {
    for mode in [0o777, 0o1777, 0o775] {
        for suffix in ["", ".lock", ".1.1700000000000.tmp"] {
            let Some(scene) = Scene::new() else { return };
            fs::create_dir(scene.path("shared")).unwrap();
            scene.chmod("shared", mode);
            scene.link(&format!("shared/state.json{suffix}"), &scene.path("roots/secret"));
            scene.try_everything(&scene.path("shared/state.json"));
        }
    }
}

#[test]
fn a_folder_that_is_swapped_while_the_service_runs_leads_it_nowhere() {
    let Some(scene) = Scene::new() else { return };
    let standin = StandIn::start().unwrap();
    let proxy = builder(&standin, &scene.path("home/data/state.json")).start();
    let before = scene.outside();
    for target in ["roots", "anybodys"] {
        let aside = scene.path(&format!("home/before-{target}"));
        fs::rename(scene.path("home/data"), aside).unwrap();
        scene.link("home/data", &scene.path(target));
        standin.reply_once("*", "*", exhausted());
        assert_eq!(post(&proxy, CHAT, BODY).status, 200);
        if target == "roots" {
            assert_eq!(get(&proxy, "/health").json()["stateWritable"], false);
            assert_eq!(scene.outside(), before, "{target}");
        }
        fs::remove_file(scene.path("home/data")).unwrap();
        fs::create_dir(scene.path("home/data")).unwrap();
        scene.give("home/data");
    }
    let made = fs::read_dir(scene.path("anybodys")).unwrap().flatten();
    let owners: Vec<u32> = made.map(|entry| entry.metadata().unwrap().uid()).collect();
    assert!(owners.iter().all(|owner| *owner == USER), "not more than the user could: {owners:?}");
}

#[test]
fn what_root_makes_in_a_users_folder_is_the_users() {
    let Some(scene) = Scene::new() else { return };
    let standin = StandIn::start().unwrap();
    let path = scene.path("home/data/deep/er/state.json");
    scene.give("home/data");
    let output = builder(&standin, &path).run(&["disable", "--key=0"]);
    assert!(output.status.success(), "{output:?}");
    let proxy = builder(&standin, &path).start();
    standin.reply_once("*", "*", exhausted());
    assert_eq!(post(&proxy, CHAT, BODY).status, 200);
    assert_eq!(get(&proxy, "/health").json()["stateWritable"], true);
    let folder = path.parent().unwrap();
    for made in ["", "state.json", "state.json.lock"].map(|name| folder.join(name)) {
        let it = fs::metadata(&made).unwrap();
        assert_eq!((it.uid(), it.gid()), (USER, GROUP), "{}", made.display());
    }
    // A link of the user's inside the user's own is none out of it.
    drop(proxy);
    scene.link("home/link.json", &path);
    let output = builder(&standin, &scene.path("home/link.json")).run(&["enable"]);
    assert!(output.status.success(), "{output:?}");
    assert!(fs::symlink_metadata(scene.path("home/link.json")).unwrap().is_symlink());
    assert_eq!(fs::metadata(&path).unwrap().uid(), USER);
}

#[test]
fn what_root_writes_in_a_folder_of_roots_stays_the_services() {
    let Some(scene) = Scene::new() else { return };
    let standin = StandIn::start().unwrap();
    fs::create_dir(scene.path("var")).unwrap();
    scene.write("var/state.json", &state());
    let output = builder(&standin, &scene.path("var/state.json")).run(&["reset", "--all"]);
    assert!(output.status.success(), "{output:?}");
    for made in ["var/state.json", "var/state.json.lock"] {
        let it = fs::metadata(scene.path(made)).unwrap();
        assert_eq!((it.uid(), it.gid()), (USER, GROUP), "{made}");
    }
    // Where its group may write as well, and has made the file.
    fs::create_dir(scene.path("group")).unwrap();
    chown(scene.path("group"), None, Some(GROUP)).unwrap();
    scene.chmod("group", 0o770);
    scene.write("group/state.json", &state());
    let output = builder(&standin, &scene.path("group/state.json")).run(&["reset", "--all"]);
    assert!(output.status.success(), "{output:?}");
    for made in ["group/state.json", "group/state.json.lock"] {
        assert_eq!(fs::metadata(scene.path(made)).unwrap().uid(), USER, "{made}");
    }
    // Nobody else may change names here, so a link is meant.
    symlink("state.json", scene.path("var/link.json")).unwrap();
    let output = builder(&standin, &scene.path("var/link.json")).run(&["disable", "--all"]);
    assert!(output.status.success(), "{output:?}");
    assert!(fs::read_to_string(scene.path("var/state.json")).unwrap().contains("disabled:"));
}
