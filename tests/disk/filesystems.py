"""File systems in trouble: full, read-only, gone, somebody else's. Each is made for its case."""

import os

from faults import Tracer
from harness import AS_ORDINARY, ORDINARY, command, endure, fill, wait_for

SMALL = "size=256k"


def cases():
    """Every function here with a docstring that takes a case, by that docstring."""
    found = [act for name, act in globals().items() if name.startswith("case_")]
    return {act.__doc__: act for act in found}


# --- full ------------------------------------------------------------------------------------


def case_full(case):
    """a disk that gets full, and then has room again"""
    folder = case.tmpfs("disk", SMALL)
    ballast = []
    endure(case.start(folder / "state.json"),
           begin=lambda: ballast.append(fill(folder)),
           end=lambda: ballast.pop().unlink())


def case_full_at_start(case):
    """a disk that is full at the start"""
    folder = case.tmpfs("disk", SMALL)
    ballast = fill(folder)
    proxy = case.start(folder / "state.json")
    proxy.wait_writable(False)
    proxy.serve()
    proxy.lose_slot()
    assert not proxy.content()
    proxy.lose_all()
    proxy.turn_away()
    assert proxy.count("state written=false") == 1
    ballast.unlink()
    proxy.settle()


def case_no_inodes(case):
    """a disk without inodes, found out by a request"""
    folder = case.tmpfs("disk", "size=1m,nr_inodes=20")
    taken = []

    def take_all():
        try:
            while True:
                path = folder / str(len(taken))
                path.touch(exist_ok=False)
                taken.append(path)
        except OSError:
            assert taken

    endure(case.start(folder / "state.json"), begin=take_all, nudge=True,
           end=lambda: [path.unlink() for path in taken])


def case_no_inode_for_the_lock(case):
    """a disk that has no inode for the lock at the start"""
    folder = case.tmpfs("disk", "nr_inodes=2")
    (folder / "taken").touch()
    proxy = case.start(folder / "state.json")
    proxy.wait_writable(False)
    proxy.serve()
    proxy.lose_slot()
    assert proxy.count("lock=") == 1, "said once"
    command("mount", "-o", "remount,nr_inodes=20", folder)
    proxy.wait_writable(True)
    # What could not be had at the start is had now.
    assert "another process" in case.refuse(folder / "state.json")
    proxy.settle()


def case_stopped_when_there_is_room(case):
    """a stop right after the disk has room again"""
    folder = case.tmpfs("disk", SMALL)
    proxy = case.start(folder / "state.json")
    proxy.serve()
    ballast = fill(folder)
    proxy.lose_slot()
    proxy.wait_writable(False)
    ballast.unlink()
    proxy.end_and_begin()


def case_stopped_while_full(case):
    """a stop while the disk is full"""
    folder = case.tmpfs("disk", SMALL)
    proxy = case.start(folder / "state.json")
    proxy.serve()
    fill(folder)
    before = proxy.content()
    proxy.lose_slot()
    assert proxy.stop() == 0
    assert proxy.count("stopped state_written=false") == 1
    assert proxy.content() == before and not proxy.leftovers()


# --- read-only -------------------------------------------------------------------------------


def case_read_only(case):
    """a folder that gets read-only, and then is writable again"""
    folder = case.make("data")
    endure(case.start(folder / "state.json"),
           begin=lambda: case.mount_read_only(folder), end=lambda: case.unmount(folder))


def case_read_only_at_start(case):
    """a folder that is read-only at the start"""
    folder = case.make("data")
    state = folder / "state.json"
    earlier = case.start(state)
    earlier.serve()
    earlier.stop()
    (folder / "state.json.1.1700000000000.tmp").write_text("of an earlier run")
    before = state.read_bytes()
    case.mount_read_only(folder)
    proxy = case.start(state)
    proxy.serve()
    proxy.lose_slot()
    proxy.wait_writable(False)
    assert proxy.count("lock=") == 1 and proxy.count("state written=false") == 1, "each said once"
    assert state.read_bytes() == before
    case.unmount(folder)
    proxy.serve()
    proxy.wait_writable(True)
    assert "another process" in case.refuse(state)
    proxy.settle()


def case_read_only_misfit(case):
    """a file that does not fit, in a read-only folder"""
    folder = case.make("data")
    state = folder / "state.json"
    state.write_text("not JSON")
    case.mount_read_only(folder)
    assert "cannot be set aside" in case.refuse(state)
    assert state.read_text() == "not JSON" and os.listdir(folder) == ["state.json"]


# --- a single file that is mounted -----------------------------------------------------------


def mounted_file(case, text="", folder=None):
    """A file mounted over another, as containers do; its two places."""
    real = (folder or case.make("host")) / "state.json"
    real.write_text(text)
    place = case.make("data") / "state.json"
    place.touch()
    case.mount("--bind", real, place)
    return real, place


def case_mounted_file(case):
    """a mounted file"""
    real, place = mounted_file(case)
    proxy = case.start(place)
    proxy.serve()
    proxy.lose_slot()
    proxy.lose_slot()
    assert proxy.count("in_place=true.*mount the folder") == 1, "said once"
    proxy.settle()
    assert real.read_bytes() == place.read_bytes()


def case_mounted_file_shrinks(case):
    """a mounted file whose content gets much shorter"""
    empty = '{"version": 1, "modelState": {}, "runtimeState": {}}'
    real, place = mounted_file(case, empty.replace(" ", " " * 100_000))
    proxy = case.start(place)
    proxy.serve()
    proxy.lose_slot()
    proxy.settle()
    assert real.stat().st_size < 20_000


def case_mounted_file_full(case):
    """a mounted file on a disk that gets full"""
    disk = case.tmpfs("host", SMALL)
    real, place = mounted_file(case, folder=disk)
    proxy = case.start(place, models=[f"m{number}" for number in range(50)])
    proxy.serve()
    ballast = fill(disk)
    # The folder has room, and this needs more than the rest of a page: without further ado the
    # full disk would be met in the middle of the file.
    proxy.lose_slot(40)
    proxy.wait_writable(False)
    at_rest = proxy.content()
    assert proxy.cooling() < proxy.known
    proxy.lose_slot()
    assert proxy.content() == at_rest
    assert proxy.count("state written=false") == 1, "said once"
    ballast.unlink()
    proxy.settle()
    assert real.read_bytes() == place.read_bytes()


def case_mounted_file_read_only(case):
    """a mounted file that gets read-only"""
    _, place = mounted_file(case)
    endure(case.start(place), nudge=True,
           begin=lambda: command("mount", "-o", "remount,bind,ro", place),
           end=lambda: command("mount", "-o", "remount,bind,rw", place))


def case_mounted_file_in_read_only_folder(case):
    """a mounted file in a folder that takes no file"""
    real, place = mounted_file(case)
    # Under the file: a read-only container with a writable file in it.
    case.unmount(place)
    case.mount_read_only(place.parent)
    case.mount("--bind", real, place)
    proxy = case.start(place)
    proxy.serve()
    proxy.lose_slot()
    assert proxy.count("in_place=true.*mount the folder") == 1, "said once"
    assert proxy.count("lock=") == 1, "said once"
    proxy.settle()
    assert real.read_bytes() == place.read_bytes()


def case_mounted_file_unmounted(case):
    """a mounted file that is unmounted: the one below it is replaced as a whole"""
    real, place = mounted_file(case)
    proxy = case.start(place)
    proxy.serve()
    case.unmount(place)
    inode = place.stat().st_ino
    proxy.lose_slot()
    proxy.settle()
    assert place.stat().st_ino != inode


def case_mounted_file_torn(case):
    """a mounted file that a power cut has torn"""
    real, place = mounted_file(case)
    proxy = case.start(place)
    proxy.serve()
    proxy.lose_slot()
    proxy.process.kill()
    proxy.process.wait()
    whole = real.read_bytes()
    place.with_name("state.json.1.1700000000000.tmp").write_bytes(whole)
    torn = whole[:len(whole) // 2] + b"\0" * 1000
    real.write_bytes(torn)
    proxy.start()
    assert proxy.count("state misfit=.*its copy") == 1
    aside = [path for path in place.parent.iterdir() if ".bak." in path.name]
    assert [path.read_bytes() for path in aside] == [torn]
    proxy.lose_slot()
    proxy.settle()


def case_mounted_misfit_full(case):
    """a mounted file that does not fit, on a full disk"""
    disk = case.tmpfs("data", SMALL)
    real = case.make("host") / "state.json"
    real.write_text("not JSON, and long" * 1000)
    place = disk / "state.json"
    place.touch()
    case.mount("--bind", real, place)
    fill(disk)
    for _ in range(2):
        assert "cannot be set aside" in case.refuse(place)
    assert real.read_text() == "not JSON, and long" * 1000
    assert sorted(os.listdir(disk)) == ["ballast", "state.json", "state.json.lock"]


def case_mounted_twice(case):
    """a file that is mounted in two folders is one proxy's"""
    real, place = mounted_file(case)
    other = case.make("other") / "state.json"
    other.touch()
    case.mount("--bind", real, other)
    proxy = case.start(place)
    proxy.serve()
    proxy.lose_slot()
    for taken in (other, real):
        assert "another process uses" in case.refuse(taken)
    proxy.settle()
    assert proxy.stop() == 0
    case.start(other).stop()


def case_mounted_from_a_folder_in_use(case):
    """a file that is mounted from the folder of a proxy that runs"""
    real = case.make("host") / "state.json"
    proxy = case.start(real)
    proxy.serve()
    proxy.lose_slot()
    place = case.make("data") / "state.json"
    place.touch()
    case.mount("--bind", real, place)
    assert "another process uses" in case.refuse(place)
    proxy.settle()


# --- gone ------------------------------------------------------------------------------------


def case_removed(case):
    """a folder that is removed is made again, and is locked"""
    folder = case.make("data") / "deep" / "er"
    state = folder / "state.json"
    proxy = case.start(state)
    proxy.serve()
    command("rm", "-r", folder.parent)
    proxy.lose_slot()
    proxy.wait_writable(True)
    assert proxy.count("state written=false") == 0
    assert "another process" in case.refuse(state)
    proxy.settle()


def start_and_replace(case):
    """A proxy that serves, and whose folder is then another one."""
    folder = case.make("data")
    state = folder / "state.json"
    proxy = case.start(state)
    proxy.serve()
    folder.rename(case.folder / "aside")
    folder.mkdir()
    return state, proxy


def case_replaced(case):
    """a folder that is replaced by another is locked as well"""
    state, proxy = start_and_replace(case)
    proxy.lose_slot()
    proxy.wait_writable(True)
    assert "another process" in case.refuse(state)
    proxy.settle()


def case_taken(case):
    """a folder that was replaced, and its file taken by another proxy, is left to that"""
    state, proxy = start_and_replace(case)
    other = case.start(state)
    proxy.lose_slot()
    proxy.wait_writable(False)
    wait_for(lambda: proxy.count("state written=false.*another process"), "word of it in the log")
    assert not other.cooling()
    assert other.stop() == 0
    proxy.settle()


def case_removed_read_only(case):
    """a folder that is removed and cannot be made again"""
    above = case.make("above")
    folder = above / "data"
    proxy = case.start(folder / "state.json")

    def remove():
        command("rm", "-r", folder)
        case.mount_read_only(above)

    endure(proxy, begin=remove, end=lambda: case.unmount(above))


# --- somebody else's -------------------------------------------------------------------------


def case_foreign_folder(case):
    """a folder of root's for a proxy of an ordinary user"""
    folder = case.make("data")
    proxy = case.start(folder / "state.json", command=AS_ORDINARY)
    proxy.serve()
    proxy.lose_slot()
    proxy.wait_writable(False)
    assert proxy.count("lock=") == 1 and proxy.count("state written=false") == 1, "each said once"
    assert os.listdir(folder) == []
    os.chown(folder, ORDINARY, ORDINARY)
    proxy.wait_writable(True)
    assert "another process" in case.refuse(folder / "state.json")
    proxy.settle()


def case_own_file_in_foreign_folder(case):
    """a file of the user's own in a folder of root's"""
    state = case.make("data") / "state.json"
    state.touch()
    os.chown(state, ORDINARY, ORDINARY)
    proxy = case.start(state, command=AS_ORDINARY)
    proxy.serve()
    proxy.lose_slot()
    assert proxy.count("in_place=true") == 1, "said once"
    proxy.settle()


def case_foreign_file(case):
    """a file that cannot be read ends the start"""
    folder = case.make("data")
    os.chown(folder, ORDINARY, ORDINARY)
    state = folder / "state.json"
    state.write_text("root's")
    state.chmod(0o600)
    assert "failed to read" in case.refuse(state, command=AS_ORDINARY)
    assert state.read_text() == "root's"


def case_closed_folder(case):
    """a folder that cannot be looked into ends the start"""
    folder = case.make("data")
    folder.chmod(0o700)
    state = folder / "state.json"
    state.write_text("root's")
    assert "failed to read" in case.refuse(state, command=AS_ORDINARY)
    assert state.read_text() == "root's"


def case_sticky_folder(case):
    """another user's file, which may be written, in a sticky folder"""
    folder = case.make("data")
    folder.chmod(0o1777)
    state = folder / "state.json"
    state.touch()
    state.chmod(0o666)
    proxy = case.start(state, command=AS_ORDINARY)
    proxy.serve()
    proxy.lose_slot()
    proxy.lose_slot()
    assert proxy.count("in_place=true") == 1, "said once"
    assert proxy.health()["stateWritable"] is True
    assert proxy.cooling() == proxy.known and not proxy.leftovers()


def without_fsync(case, state):
    """On a file system that has no such thing as putting it on disk."""
    proxy = case.start(state)
    proxy.serve()
    tracer = Tracer(case, proxy, "-e", "inject=fsync:error=EINVAL")
    proxy.lose_slot()
    proxy.lose_slot()
    assert proxy.health()["stateWritable"] is True
    assert proxy.count("state written=false") == 0
    assert proxy.cooling() == proxy.known
    tracer.detach()
    proxy.settle()


def case_no_fsync(case):
    """a file system that has no fsync"""
    without_fsync(case, case.make("data") / "state.json")


def case_no_fsync_mounted(case):
    """a mounted file on a file system that has no fsync"""
    _, place = mounted_file(case)
    without_fsync(case, place)


# --- elsewhere -------------------------------------------------------------------------------


def case_link(case):
    """a link into another file system, which gets full"""
    disk = case.tmpfs("disk", SMALL)
    link = case.make("data") / "state.json"
    link.symlink_to(disk / "real.json")
    proxy = case.start(link)
    ballast = []
    endure(proxy, begin=lambda: ballast.append(fill(disk)), end=lambda: ballast.pop().unlink())
    assert link.is_symlink() and os.listdir(link.parent) == ["state.json"]
    assert sorted(os.listdir(disk)) == ["real.json", "real.json.lock"]


def case_no_lock(case):
    """a lock that cannot be made is a warning"""
    folder = case.make("data")
    (folder / "state.json.lock").mkdir()
    proxy = case.start(folder / "state.json")
    proxy.serve()
    proxy.lose_slot()
    proxy.lose_slot()
    assert proxy.count("WARN.* lock=") == 1, "said once"
    proxy.settle()
