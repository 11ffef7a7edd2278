"""Claude Code, Codex, Qwen Code and opencode as people install them: while slots run out, and with
models that cannot take what they send. `PROGRAMS` is the folder of their commands.

Each question has a home and a folder of its own, so nobody's settings and credentials are in sight.
"""

import base64
import contextlib
import json
import os
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

from common import ALL_SLOTS, MODELS, PoolTest, text_of
from lab import die_with_parent

LIMIT = 60  # seconds for one question
REASON = "exhausted; it will reset at"
PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def outputs(first, second):
    """What the two models write at most."""
    return {MODELS[0]: {"max_output": first}, MODELS[1]: {"max_output": second}}


class Program(PoolTest):
    def command(self, pool, home, folder):
        """The command of a question, and what its environment has beside the usual."""
        raise NotImplementedError

    def run_in(self, pool, *more, **env):
        """One question, and the end of everything that the program started for it."""
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
            folder = Path(home, "work")
            folder.mkdir()
            (folder / "picture.png").write_bytes(PICTURE)
            command, own = self.command(pool, Path(home), folder)
            usual = {name: os.environ[name] for name in ("PATH", "NO_PROXY", "no_proxy")}
            program = os.environ["PROGRAMS"] + "/" + command[0]
            process = subprocess.Popen(
                [program, *command[1:], *more], cwd=folder, env={**usual, "HOME": home, **own, **env},
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                process_group=0, preexec_fn=lambda: die_with_parent(signal.SIGTERM),
            )
            try:
                said = process.communicate(timeout=LIMIT)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return subprocess.CompletedProcess(command, process.returncode, *said)

    def ask(self, pool, *more, model=None, **env):
        """A question that is answered, by `model` if that is said."""
        ended = self.run_in(pool, *more, **env)
        self.assertEqual(ended.returncode, 0, ended)
        self.assertIn(text_of(model) if model else "Served by ", ended.stdout, ended)

    def ends(self, pool, reason):
        """A question to a pool with nothing left: the program ends with an error and says why,
        instead of sleeping until the quota is back."""
        ended = self.run_in(pool)
        self.assertNotEqual(ended.returncode, 0, ended)
        self.assertIn(reason, ended.stdout + ended.stderr)

    def use_up(self, reason):
        """Questions until every slot has served once, and one more. Some programs call twice for
        a question, for a title or a memory."""
        pool = self.pool(quota=1)
        for _ in ALL_SLOTS:
            if len(pool.slots()) < len(ALL_SLOTS):
                self.ask(pool)
        self.assertEqual(sorted(pool.slots()), ALL_SLOTS)
        self.ends(pool, reason)

    def is_moved(self, pool):
        """All was served by the second model, as it was asked, since the first refused."""
        refused = {call["model"] for call in pool.calls() if call["status"] != 200}
        served = {call["model"] for call in pool.calls() if call["status"] == 200}
        self.assertEqual((refused, served), ({MODELS[0]}, {MODELS[1]}))
        self.assertEqual(pool.adjusted(), [])

    def is_lowered(self, pool, most):
        """All was served by the second model with its bound, since both refused."""
        refused = {call["model"] for call in pool.calls() if call["status"] != 200}
        self.assertEqual(refused, set(MODELS))
        served = [call["body"] for call in pool.calls() if call["status"] == 200]
        self.assertEqual({(body["model"], body["max_tokens"]) for body in served}, {(MODELS[1], most)})
        self.assertEqual(pool.adjusted(), [f"max_tokens={most}"] * len(served))


class ClaudeCode(Program):
    def command(self, pool, home, folder):
        return ["claude", "-p", "hello"], {
            "ANTHROPIC_BASE_URL": pool.origin, "ANTHROPIC_AUTH_TOKEN": pool.key,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1",
        }

    def test_until_all_is_used_up(self):
        # An `overloaded_error` it would take for passing, and hide the reason.
        self.use_up("will reset")

    def test_more_output_than_the_first_model_writes(self):
        pool = self.pool(limits=outputs(8192, 65536))
        for most in ("32000", "64000"):
            self.ask(pool, model=MODELS[1], CLAUDE_CODE_MAX_OUTPUT_TOKENS=most)
        self.is_moved(pool)
        sent = [call["body"]["max_tokens"] for call in pool.calls()]
        self.assertEqual(sent, [32000, 32000, 64000])

    def test_more_output_than_any_model_writes(self):
        pool = self.pool(limits=outputs(8192, 16384))
        for _ in range(2):
            self.ask(pool, model=MODELS[1])
        self.is_lowered(pool, 16384)
        self.assertEqual([call["status"] for call in pool.calls()], [400, 400, 200, 200])


class Codex(Program):
    def command(self, pool, home, folder):
        provider = (f'{{name="pool", base_url="{pool.origin}/v1", env_key="POOL_KEY", '
                    'wire_api="responses", request_max_retries=1, stream_max_retries=1}')
        settings = ["-c", 'model_provider="pool"', "-c", 'model="any"',
                    "-c", f"model_providers.pool={provider}"]
        return ["codex", "exec", "--skip-git-repo-check", *settings, "hello"], {"POOL_KEY": pool.key}

    def test_until_all_is_used_up(self):
        self.use_up(REASON)

    def test_a_picture(self):
        pool = self.pool(limits={MODELS[0]: {"text_only": True}})
        for _ in range(2):
            self.ask(pool, "-i", "picture.png", model=MODELS[1])
        self.is_moved(pool)
        self.assertEqual([call["status"] for call in pool.calls()], [400, 200, 200])
        self.ask(pool, model=MODELS[0])

    def test_a_model_that_is_not_served_there(self):
        pool = self.pool(limits={MODELS[0]: {"not_on": "/responses"}})
        for _ in range(2):
            self.ask(pool, model=MODELS[1])
        self.is_moved(pool)
        self.assertEqual([call["status"] for call in pool.calls()], [400, 200, 200])


class QwenCode(Program):
    def command(self, pool, home, folder):
        provider = {"id": "any", "name": "pool", "baseUrl": pool.origin + "/v1", "envKey": "POOL_KEY"}
        settings = {
            "modelProviders": {"openai": [provider]}, "model": {"name": "any"},
            "security": {"auth": {"selectedType": "openai"}},
            "privacy": {"usageStatisticsEnabled": False}, "telemetry": {"enabled": False},
        }
        (home / ".qwen").mkdir()
        (home / ".qwen/settings.json").write_text(json.dumps(settings))
        return ["qwen", "-p", "hello"], {"POOL_KEY": pool.key}

    def test_until_all_is_used_up(self):
        self.use_up(REASON)

    def test_a_used_up_pool_is_asked_once(self):
        pool = self.pool(quota=0)
        self.ends(pool, REASON)
        self.assertEqual(pool.refusals(503), 1)

    def test_more_output_than_the_first_model_writes(self):
        pool = self.pool(limits=outputs(8192, 65536))
        self.ask(pool, model=MODELS[1])
        self.is_moved(pool)

    def test_more_output_than_any_model_writes(self):
        pool = self.pool(limits=outputs(8192, 16384))
        self.ask(pool, model=MODELS[1])
        self.is_lowered(pool, 16384)


class OpenCode(Program):
    """What it says when all is used up, it says after more than a minute of its own retries."""

    def command(self, pool, home, folder):
        model = {"tool_call": True, "limit": {"context": 131072, "output": 32000}}
        options = {"baseURL": pool.origin + "/v1", "apiKey": pool.key}
        settings = {"model": "pool/any", "autoupdate": False, "share": "disabled", "provider": {"pool": {
            "npm": "@ai-sdk/openai-compatible", "options": options, "models": {"any": model},
        }}}
        (folder / "opencode.json").write_text(json.dumps(settings))
        return ["opencode", "run", "hello"], {}

    def test_more_output_than_the_first_model_writes(self):
        pool = self.pool(limits=outputs(8192, 65536))
        self.ask(pool, model=MODELS[1])
        self.is_moved(pool)

    def test_more_output_than_any_model_writes(self):
        pool = self.pool(limits=outputs(8192, 16384))
        self.ask(pool, model=MODELS[1])
        self.is_lowered(pool, 16384)


if __name__ == "__main__":
    unittest.main()
