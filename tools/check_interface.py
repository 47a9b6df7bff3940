#!/usr/bin/env python3
"""Checks docs/tests_of_the_interface.md, the table from each public function, option and error to the tests that provoke it.

usage: check_interface.py [--list]        from the root of the tree; --list prints the names that the headers have

It fails when a public name of the headers below is not in the table or one in the table is not in the headers, when a
named test does not exist or its file does not use the name, and when a name has no test. `for the rooms above` in place of
tests marks what programs do not use.
"""
import os
import re
import sys

TABLE = "docs/tests_of_the_interface.md"
ABOVE = "for the rooms above"
# What treadle/core.h gives a program: header, its classes (public functions), its structs (fields too), free functions.
HEADERS = [
    ("treadle/core/worker/worker.h", ["Worker", "CallProxy"], ["Metrics"], True),
    ("treadle/core/worker/call_methods.h", ["CallMethods", "WorkerRef"], [], True),
    ("treadle/core/worker/options.h", [], ["JoinOptions", "ShutdownOptions"], True),
    ("treadle/core/rpc/engine.h", [], ["CallOptions"], False),
    ("treadle/core/rpc/functions.h", ["Functions"], [], False),
    ("treadle/core/rpc/call.h", ["CallContext"], [], False),
    ("treadle/core/rpc/cancellation.h", [], [], True),
    ("treadle/core/rpc/rref.h", ["RRef"], [], False),
    ("treadle/core/rpc/codec.h", [], [], False),
    ("treadle/core/io/future.h", ["Future", "Promise"], [], True),
    ("treadle/core/io/task.h", ["Task"], [], True),
    ("treadle/core/cluster/launch.h", [], ["Launch"], False),
    ("treadle/core/link/channels.h", [], ["Channels", "ChannelUse", "PeerChannels"], False),
    ("treadle/core/link/message.h", [], ["WorkerInfo"], False),
    ("treadle/core/group/group.h", ["ProcessGroup"], [], True),
    ("treadle/core/group/options.h", [], ["GroupOptions", "PushPullOptions"], False),
    ("treadle/core/summation/compression.h", [], ["Compression"], False),
    ("treadle/core/summation/times.h", [], ["SummationTimes"], False),
    ("treadle/core/summation/service.h", ["SummationService"], ["SummationOptions", "SummationTensor"], False),
    ("treadle/core/base/error.h", ["Error", "RemoteError"], [], True),
    # What the headers with tensors (treadle/rpc.h, autograd.h, nn.h, optim.h, group.h, ddp.h, amp.h, checkpoint.h) add.
    ("treadle/tensor/worker/join.h", [], [], True),
    ("treadle/tensor/bridge/operators.h", ["Operand"], [], True),
    ("treadle/tensor/bridge/tensor_rref.h", ["RRefMethods"], [], True),
    ("treadle/tensor/bridge/tensor_memory.h", [], [], True),
    ("treadle/tensor/autograd/autograd_context.h", ["AutogradContext"], [], True),
    ("treadle/tensor/autograd/checkpoint.h", [], ["CheckpointOptions"], True),
    ("treadle/tensor/autograd/describe.h", [], [], True),
    ("treadle/tensor/autograd/options.h", [], ["AutogradOptions", "BackwardOptions"], True),
    ("treadle/tensor/nn/remote_module.h", ["RemoteModule"], [], True),
    ("treadle/tensor/nn/remote_submodule.h", ["RemoteSubmoduleImpl"], [], True),
    ("treadle/tensor/nn/remote_child.h", [], [], True),
    ("treadle/tensor/nn/module_functions.h", [], [], True),
    ("treadle/tensor/nn/module_state.h", [], [], True),
    ("treadle/tensor/optim/distributed_optimizer.h", ["DistributedOptimizer"], [], True),
    ("treadle/tensor/optim/parameter_groups.h", [], ["ParameterGroup"], True),
    ("treadle/tensor/optim/optimizer_functions.h", [], [], True),
    ("treadle/tensor/optim/clip_grad_norm.h", [], ["ClipOptions"], True),
    ("treadle/tensor/collective/collectives.h", [], [], True),
    ("treadle/train/ddp/distributed_data_parallel.h", ["DistributedDataParallel"], ["DdpOptions"], True),
    ("treadle/train/ddp/asynchronous_parameters.h", ["AsynchronousParameters"], [], True),
    ("treadle/train/ddp/join.h", ["Join"], [], False),
    ("treadle/train/ddp/ddp_state.h", [], ["DdpState"], True),
    ("treadle/train/ddp/ddp_stats.h", [], ["DdpTimes", "DdpBucketTimes", "DdpStep", "DdpStats"], True),
    ("treadle/train/ddp/local_sgd.h", ["LocalSgd"], ["LocalSgdOptions"], True),
    ("treadle/train/ddp/replica_set.h", ["ReplicaSet"], [], True),
    ("treadle/train/ddp/replica_set_options.h", [], ["ReplicaSetOptions"], False),
    ("treadle/train/ddp/replica_loss.h", [], ["ReplicaLoss"], False),
    ("treadle/train/ddp/comm_hook.h", ["CommHook"], ["HookParameter"], False),
    ("treadle/train/ddp/reduction.h", ["Exchange"], [], False),
    ("treadle/train/ddp/bucket.h", [], ["Bucket"], False),
    ("treadle/train/ddp/cast_hook.h", ["CastHook"], [], True),
    ("treadle/train/ddp/error_feedback_hook.h", ["ErrorFeedbackHook"], [], True),
    ("treadle/train/ddp/power_sgd_hook.h", ["PowerSgdHook"], ["PowerSgdOptions"], True),
    ("treadle/train/ddp/top_k_hook.h", ["TopKHook"], ["TopKOptions"], True),
    ("treadle/train/ddp/distributed_sampler.h", ["DistributedSampler"], ["SamplerOptions"], True),
    ("treadle/train/ddp/clip_grad_norm.h", [], [], True),
    ("treadle/train/ddp/sync_batch_norm.h", ["SyncBatchNormImpl"], [], False),
    ("treadle/train/ddp/autocast.h", ["Autocast"], ["AutocastOptions"], True),
    ("treadle/train/ddp/grad_scaler.h", ["GradScaler"], ["GradScalerOptions"], True),
    ("treadle/train/checkpoint/safetensors.h", [], [], True),
]
CODES, ERRORS = "treadle/core/base/status.h", "treadle/core/base/error.h"
NOT_NAMES = {"if", "for", "while", "return", "sizeof", "decltype", "requires", "static_assert", "raise", "explicit", "noexcept",
             "alignas", "throwIfError", "TREADLE_GUARDED_BY", "TREADLE_REQUIRES"}


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def bare(text):
    """The code without comments, literals and preprocessor lines."""
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r'"(?:\\.|[^"\\])*"', '""', text)
    return re.sub(r"^[ \t]*#.*(?:\\\n.*)*$", "", text, flags=re.M)


def without_bodies(text):
    """What stands outside of braces and initialisers' braces: declarations, each ended by `;`."""
    out, depth = [], 0
    for char in text:
        if char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0 and "".join(out).rstrip()[-1:] != "=":
                out.append(";")
        elif depth == 0:
            out.append(char)
    return "".join(out)


def body_of(text, name):
    """The text between the braces of class or struct `name`."""
    found = re.search(r"\b(class|struct)\s+(?:\[\[\w+\]\]\s*)?" + name + r"\b[^;{(]*\{", text)
    if not found:
        sys.exit(f"check_interface: no class {name} in its header: mend HEADERS in tools/check_interface.py")
    depth, begin = 1, found.end()
    for at in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return found.group(1), text[begin:at]
    return sys.exit(f"check_interface: class {name} has no end")


def public_part(kind, body):
    """The declarations that others may use."""
    text, parts, visible = without_bodies(body), [], kind == "struct"
    for piece in re.split(r"\b(public|private|protected)\s*:(?!:)", text):
        if piece in ("public", "private", "protected"):
            visible = piece == "public"
        elif visible:
            parts.append(piece)
    return ";".join(parts)


def strip_templates(declaration):
    """Without `template <...>` and without what stands in angle brackets."""
    before = None
    while before != declaration:
        before = declaration
        declaration = re.sub(r"<[^<>()]*(?:\([^()]*\)[^<>()]*)*>", " ", declaration)
    return declaration.replace("template", " ")


def declared_function(declaration):
    found = re.search(r"(operator\(\)|~?\b\w+)\s*\(", declaration)
    return found.group(1) if found else None


def members(text, name, with_fields):
    kind, body = body_of(text, name)
    names = set()
    for declaration in public_part(kind, body).split(";"):
        declaration = strip_templates(declaration).strip()
        declaration = re.sub(r"\brequires\b\s*(\([^()]*(\([^()]*\)[^()]*)*\))?", " ", declaration).strip()
        if not declaration or re.match(r"(using|friend|class|struct|enum)\b", declaration):
            continue
        function = declared_function(declaration.split("=")[0] if "operator" not in declaration else declaration)
        if function:
            if function not in NOT_NAMES and function != name and not function.startswith("~") and not (
                    function == "operator" or "operator=" in declaration):
                names.add(f"{name}::{function}")
        elif with_fields and not declaration.startswith("static"):
            for part in re.sub(r"=[^,]*", "", declaration).split(","):
                field = re.search(r"([A-Za-z_]\w*)\s*$", part.strip())
                if field and "operator" not in declaration:
                    names.add(f"{name}::{field.group(1)}")
    return names


def free_functions(text):
    """Of the namespaces that programs use, not of those within."""
    names = set()
    for found in re.finditer(r"namespace (treadle|treadle::group|treadle::safetensors) \{", text):
        depth, at = 1, found.end()
        while depth and at < len(text):
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        for declaration in without_bodies(text[found.end():at - 1]).split(";"):
            declaration = strip_templates(declaration).strip()
            if re.match(r"(using|friend|class|struct|enum|namespace|inline constexpr|concept)\b", declaration):
                continue
            function = declared_function(re.sub(r"\brequires\b\s*\([^()]*(\([^()]*\)[^()]*)*\)", " ", declaration))
            if function and "::" not in declaration.split("(")[0].split()[-1] and function not in NOT_NAMES:
                names.add(function)
    return names


def public_names():
    names = {"TREADLE_FIELDS"}
    for path, classes, structs, free in HEADERS:
        text = bare(read(path))
        for name in classes:
            names |= members(text, name, False)
        for name in structs:
            names |= members(text, name, True)
        if free:
            names |= free_functions(text)
    names |= {f"Code::{code}" for code in re.findall(r"^\s*(k\w+) = \d+,", read(CODES), re.M) if code != "kOk"}
    names |= set(re.findall(r"^class (\w+Error) : public Error", read(ERRORS), re.M))
    return names


# A GoogleTest case with its body, which ends on its first line or with a brace at the begin of one.
CASE = re.compile(r"^(?:TYPED_)?TEST(?:_F|_P)?\((?P<suite>\w+),\s*(?P<name>\w+)\) (?:try )?"
                  r"\{(?:[^\n]*\}\n|.*?^\}[^\n]*\n)", re.M | re.S)


def tests_of_the_tree():
    """suite.name of every GoogleTest case -> its own text, that of its file besides the cases, and the folder's headers."""
    tests = {}
    for folder, _, files in os.walk("tests"):
        texts = {name: read(os.path.join(folder, name)) for name in files if name.endswith((".cc", ".h"))}
        headers = "".join(text for name, text in texts.items() if name.endswith(".h"))
        for name, text in texts.items():
            besides = CASE.sub("", text)
            for case in CASE.finditer(text):
                test = f"{case['suite']}.{case['name']}"
                tests[test] = tests.get(test, "") + case[0] + besides + headers
    return tests


def rows():
    """(line number, name, tests) of each row of the tables."""
    for number, line in enumerate(read(TABLE).splitlines(), 1):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("| `") and len(cells) == 2:
            yield number, cells[0].strip("`"), cells[1]


def check():
    names, tests, seen, wrong = public_names(), tests_of_the_tree(), set(), []
    for number, name, cell in rows():
        where = f"{TABLE}:{number}: `{name}`"
        if name in seen:
            wrong.append(f"{where} is there twice")
        seen.add(name)
        if name not in names:
            wrong.append(f"{where} is no public name of the headers: take it out, or mend its spelling")
        if cell == ABOVE:
            continue
        named = re.findall(r"`([^`]+)`", cell)
        if not named:
            wrong.append(f"{where} has no test")
        word = re.sub(r"operator\(\)", "", name.split("::")[-1])
        for test in named:
            if test not in tests:
                wrong.append(f"{where}: there is no test {test}")
            elif not re.search(r"\b" + re.escape(word) + r"\b", tests[test]) and word:
                wrong.append(f"{where}: neither {test} nor what its file has besides tests has the word {word}")
    wrong += [f"{TABLE}: `{name}` is missing: name a test that provokes it" for name in sorted(names - seen)]
    for line in wrong:
        print(line)
    print(f"interface: {len(seen)} names, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        print("\n".join(sorted(public_names())))
        sys.exit(0)
    sys.exit(check() if len(sys.argv) == 1 else __doc__)
