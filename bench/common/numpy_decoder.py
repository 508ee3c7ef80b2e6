"""Computes log probabilities from a GGUF file with NumPy in f64, from the definitions.

It shares no code with the package: llama.cpp's `gguf` dequantizes the weights, and Llama's queries
and keys are rotated in pairs of neighbouring dimensions, as the file stores them.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class NumpyDecoder:
    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)
        self.settings = {name: field.contents() for name, field in reader.fields.items()}
        self.arch = self.settings["general.architecture"]
        self.tensors: dict[str, Array] = {}
        for tensor in reader.tensors:
            values = gguf.dequantize(tensor.data, tensor.tensor_type)
            shape = [int(n) for n in tensor.shape][::-1]
            self.tensors[tensor.name] = values.reshape(shape).astype(np.float64)

    def get(self, name: str, default: Any = None) -> Any:
        return self.settings.get(f"{self.arch}.{name}", default)

    def log_probabilities(self, token_ids: list[int]) -> Array:
        """Returns the log probabilities after each token: f64 [tokens, vocabulary]."""
        t = self.tensors
        x = t["token_embd.weight"][token_ids]
        if self.arch.startswith("gemma"):
            x = x * math.sqrt(x.shape[1])
        x = x * self.get("embedding_scale", 1.0)
        for layer in range(self.get("block_count")):
            x = self._layer(layer, x)
        x = self._norm(
            x, t["token_embd_norm.weight" if self.arch.startswith("lfm2") else "output_norm.weight"]
        )
        logits = x @ t.get("output.weight", t["token_embd.weight"]).T / self.get("logit_scale", 1.0)
        if cap := self.get("final_logit_softcapping"):
            logits = cap * np.tanh(logits / cap)
        logits = logits - logits.max(axis=1, keepdims=True)
        found: Array = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return found

    def _layer(self, layer: int, x: Array) -> Array:
        t, block = self.tensors, f"blk.{layer}"
        y = self._norm(x, t[f"{block}.attn_norm.weight"])
        if f"{block}.shortconv.conv.weight" in t:
            y = self._convolution(block, y)
        elif f"{block}.ssm_a" in t:
            y = self._scan(block, y) if f"{block}.ssm_d" in t else self._gated_delta(block, y)
        else:
            y = self._attention(layer, y)
        if self.arch == "gemma3":
            y = self._norm(y, t[f"{block}.post_attention_norm.weight"])
        scale = self.get("residual_scale", 1.0)
        x = x + scale * y
        mlp_norm = f"{block}.ffn_norm.weight"
        y = self._norm(x, t[mlp_norm if mlp_norm in t else f"{block}.post_attention_norm.weight"])
        z = self._mixture(block, y) if f"{block}.ffn_gate_inp.weight" in t else self._mlp(block, y)
        if f"{block}.ffn_up_shexp.weight" in t:
            shared = self._mlp(block, y, "_shexp")
            gate = t.get(f"{block}.ffn_gate_inp_shexp.weight")
            z = z + (shared if gate is None else shared * _sigmoid(y @ gate.reshape(-1, 1)))
        y = scale * z
        if f"{block}.post_ffw_norm.weight" in t:
            y = self._norm(y, t[f"{block}.post_ffw_norm.weight"])
        return x + y

    def _mlp(self, block: str, x: Array, ending: str = "") -> Array:
        up = self._linear(x, f"{block}.ffn_up{ending}")
        if f"{block}.ffn_gate{ending}.weight" in self.tensors:
            gate = self._linear(x, f"{block}.ffn_gate{ending}")
        else:
            gate, up = np.split(up, 2, axis=1)
        if self.arch.startswith("gemma"):
            gate = gate * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
        else:
            gate = gate / (1 + np.exp(-gate))
        return self._linear(gate * up, f"{block}.ffn_down{ending}")

    def _mixture(self, block: str, x: Array) -> Array:
        """Returns the output of the chosen experts for each token."""
        gates, ups = (
            self.tensors.get(f"{block}.ffn_{name}_exps.weight") for name in ("gate", "up")
        )
        if gates is None or ups is None:
            gates, ups = np.split(self.tensors[f"{block}.ffn_gate_up_exps.weight"], 2, axis=1)
        downs = self.tensors[f"{block}.ffn_down_exps.weight"]
        scores = self._linear(x, f"{block}.ffn_gate_inp")
        biases = {
            name: self.tensors.get(f"{block}.ffn_{name}_exps.bias", np.zeros((len(gates), 1)))
            for name in ("gate", "up", "down")
        }
        # Where the factors of the chosen add up to 1, those of the others do not matter.
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        if self.get("expert_gating_func") == 2:
            shares = _sigmoid(scores)
        is_normalized = self.arch not in ("olmoe", "qwen2moe")
        bias = self.tensors.get(f"{block}.exp_probs_b.bias", 0)
        y = np.zeros_like(x)
        for row, share in enumerate(shares):
            chosen = np.argsort(-share - bias)[: self.get("expert_used_count")]
            for expert in chosen:
                gate = gates[expert] @ x[row] + biases["gate"][expert]
                up = ups[expert] @ x[row] + biases["up"][expert]
                if self.arch == "gpt-oss":
                    gate, up = gate.clip(max=7), up.clip(-7, 7) + 1
                    inner = gate / (1 + np.exp(-1.702 * gate)) * up
                else:
                    inner = gate / (1 + np.exp(-gate)) * up
                result = downs[expert] @ inner + biases["down"][expert]
                y[row] += share[expert] / (share[chosen].sum() if is_normalized else 1) * result
        return y

    def _convolution(self, block: str, x: Array) -> Array:
        factors = self.tensors[f"{block}.shortconv.conv.weight"]
        b, c, x = np.split(self._linear(x, f"{block}.shortconv.in_proj"), 3, axis=1)
        span = factors.shape[1]
        padded = np.concatenate([np.zeros((span - 1, x.shape[1])), b * x])
        windows = np.lib.stride_tricks.sliding_window_view(padded, span, axis=0)
        return self._linear(c * (windows * factors).sum(axis=2), f"{block}.shortconv.out_proj")

    def _convolved(self, block: str, x: Array) -> Array:
        factors = self.tensors[f"{block}.ssm_conv1d.weight"]
        padded = np.concatenate([np.zeros((factors.shape[1] - 1, x.shape[1])), x])
        windows = np.lib.stride_tricks.sliding_window_view(padded, factors.shape[1], axis=0)
        y = (windows * factors).sum(axis=2) + self.tensors.get(f"{block}.ssm_conv1d.bias", 0)
        return np.asarray(y * _sigmoid(y))

    def _gated_delta(self, block: str, x: Array) -> Array:
        """Returns the output of the gated delta rule, with the value heads in the file's order."""
        t, n = self.tensors, len(x)
        heads, groups = self.get("ssm.time_step_rank"), self.get("ssm.group_count")
        size, width = self.get("ssm.state_size"), self.get("ssm.inner_size") // heads
        joined, gate = self._delta_inputs(block, x)
        joined = self._convolved(block, joined)
        q, k, v = np.split(joined, [groups * size, 2 * groups * size], axis=1)
        q, k = (each.reshape(n, groups, size) for each in (q, k))
        q, k = (each / np.sqrt((each**2).sum(axis=2, keepdims=True) + 1e-12) for each in (q, k))
        v = v.reshape(n, heads, width)
        if self.arch == "qwen3next":
            both = self._linear(x, f"{block}.ssm_ba").reshape(n, groups, 2, heads // groups)
            beta, alpha = (both[:, :, i].reshape(n, heads) for i in range(2))
        else:
            beta, alpha = (
                self._linear(x, f"{block}.ssm_beta"),
                self._linear(x, f"{block}.ssm_alpha"),
            )
        beta, steps = _sigmoid(beta), np.log1p(np.exp(alpha + t[f"{block}.ssm_dt.bias"]))
        kept = np.exp(steps * t[f"{block}.ssm_a"])
        y = np.zeros((n, heads, width))
        for head in range(heads):
            group = head * groups // heads if self.arch == "qwen3next" else head % groups
            memory = np.zeros((width, size))
            for row in range(n):
                memory = memory * kept[row, head]
                known = memory @ k[row, group]
                memory = memory + np.outer(beta[row, head] * (v[row, head] - known), k[row, group])
                y[row, head] = memory @ q[row, group] / math.sqrt(size)
        y = self._norm(y, t[f"{block}.ssm_norm.weight"]).reshape(n, -1)
        return self._linear(y * gate * _sigmoid(gate), f"{block}.ssm_out")

    def _delta_inputs(self, block: str, x: Array) -> tuple[Array, Array]:
        """Returns queries, keys and values, and gates; old files store them group by group."""
        if f"{block}.ssm_in.weight" not in self.tensors:
            return self._linear(x, f"{block}.attn_qkv"), self._linear(x, f"{block}.attn_gate")
        groups, size = self.get("ssm.group_count"), self.get("ssm.state_size")
        of_groups = self._linear(x, f"{block}.ssm_in").reshape(len(x), groups, -1)
        width = (of_groups.shape[2] - 2 * size) // 2
        *parts, gate = (
            each.reshape(len(x), -1)
            for each in np.split(of_groups, [size, 2 * size, 2 * size + width], axis=2)
        )
        return np.concatenate(parts, axis=1), gate

    def _scan(self, block: str, x: Array) -> Array:
        """Returns the output of Mamba 2 (Dao and Gu, Transformers are SSMs, section 2)."""
        t, n = self.tensors, len(x)
        heads, groups = self.get("ssm.time_step_rank"), self.get("ssm.group_count")
        size, inner = self.get("ssm.state_size"), self.get("ssm.inner_size")
        sizes = [inner, 2 * inner + 2 * groups * size]
        gate, joined, steps = np.split(self._linear(x, f"{block}.ssm_in"), sizes, axis=1)
        joined = self._convolved(block, joined)
        steps = np.log1p(np.exp(steps + t[f"{block}.ssm_dt.bias"]))
        v, b, c = np.split(joined, [inner, inner + groups * size], axis=1)
        v, b, c = v.reshape(n, heads, -1), b.reshape(n, groups, size), c.reshape(n, groups, size)
        y: Array = np.zeros_like(v)
        for head in range(heads):
            group, state = head * groups // heads, np.zeros((v.shape[2], size))
            rate, skip = (
                t[f"{block}.ssm_a"].reshape(-1)[head],
                t[f"{block}.ssm_d"].reshape(-1)[head],
            )
            for row in range(n):
                step = steps[row, head]
                state = state * np.exp(step * rate) + step * np.outer(v[row, head], b[row, group])
                y[row, head] = state @ c[row, group] + skip * v[row, head]
        y = y.reshape(n, -1) * gate * _sigmoid(gate)
        gains = t[f"{block}.ssm_norm.weight"].reshape(groups, -1)
        y = self._norm(y.reshape(n, groups, -1), gains).reshape(n, -1)
        return self._linear(y, f"{block}.ssm_out")

    def _attention(self, layer: int, x: Array) -> Array:
        block, n = f"blk.{layer}", len(x)
        heads, kv_heads = self.get("attention.head_count"), self.get("attention.head_count_kv")
        kv_heads = kv_heads[layer] if isinstance(kv_heads, list) else kv_heads
        size = self.get("attention.key_length", self.get("embedding_length") // heads)
        if f"{block}.attn_qkv.weight" in self.tensors:
            widths = [heads * size, (heads + kv_heads) * size]
            q, k, v = np.split(self._linear(x, f"{block}.attn_qkv"), widths, axis=1)
        else:
            q, k, v = (self._linear(x, f"{block}.attn_{name}") for name in "qkv")
        has_gates = len(q[0]) == 2 * heads * size
        gate = np.zeros((n, heads, size))
        if has_gates:
            q, gate = np.split(q.reshape(n, heads, 2 * size), 2, axis=2)
        if self.arch == "olmoe":
            q = self._norm(q, self.tensors[f"{block}.attn_q_norm.weight"])
            k = self._norm(k, self.tensors[f"{block}.attn_k_norm.weight"])
        q, k, v = (each.reshape(n, -1, size).swapaxes(0, 1) for each in (q, k, v))
        if f"{block}.attn_q_norm.weight" in self.tensors and self.arch != "olmoe":
            q = self._norm(q, self.tensors[f"{block}.attn_q_norm.weight"])
            k = self._norm(k, self.tensors[f"{block}.attn_k_norm.weight"])
        window = self._window(layer)
        if self.get("rope.scaling.finetuned", True):
            q, k = self._rotate(q, n, bool(window)), self._rotate(k, n, bool(window))
        distance = np.arange(n)[:, None] - np.arange(n)
        seen = (distance >= 0) & ((distance < window) if window else True)
        outputs = []
        for head in range(heads):
            scores = q[head] @ k[head * kv_heads // heads].T
            scores = scores * self.get("attention.scale", 1 / math.sqrt(size))
            scores = np.where(seen, scores, -np.inf)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            total = weights.sum(axis=1, keepdims=True)
            if f"{block}.attn_sinks.weight" in self.tensors:
                sink = self.tensors[f"{block}.attn_sinks.weight"][head]
                total = total + np.exp(sink - scores.max(axis=1, keepdims=True))
            weights /= total
            outputs.append(weights @ v[head * kv_heads // heads])
        y = np.concatenate(outputs, axis=1)
        if has_gates:
            y = y * _sigmoid(gate.reshape(n, -1))
        return self._linear(y, f"{block}.attn_output")

    def _window(self, layer: int) -> int:
        window = self.get("attention.sliding_window", 0)
        period = self.get(
            "attention.sliding_window_pattern", {"gemma3": 6, "gpt-oss": 2}.get(self.arch, 0)
        )
        return window if period == 0 or layer % period < period - 1 else 0

    def _rotate(self, x: Array, n: int, has_window: bool) -> Array:
        """Rotates each pair of dimensions as a complex number."""
        num = self.get("rope.dimension_count", x.shape[2])
        angles, magnitude = self._angles(num, n, has_window)
        turn = magnitude * np.exp(1j * angles)
        y = x.copy()
        if self.arch == "llama" or self.arch.startswith("granite"):
            z = (x[..., :num:2] + 1j * x[..., 1:num:2]) * turn
            y[..., :num:2], y[..., 1:num:2] = z.real, z.imag
        else:
            half = num // 2
            z = (x[..., :half] + 1j * x[..., half:num]) * turn
            y[..., :half], y[..., half:num] = z.real, z.imag
        return y

    def _angles(self, num: int, n: int, has_window: bool) -> tuple[Array, float]:
        t = self.tensors
        base = self.get("rope.freq_base", 10000.0)
        if self.arch == "gemma3" and has_window:
            return np.outer(np.arange(n), 10000.0 ** (-np.arange(0, num, 2) / num)), 1.0
        frequencies = base ** (-np.arange(0, num, 2) / num)
        factor = self.get("rope.scaling.factor", 1.0)
        magnitude = self.get("rope.scaling.attn_factor", 1.0)
        original = self.get("rope.scaling.original_context_length", self.get("context_length"))
        if "rope_freqs.weight" in t:
            frequencies = frequencies / t["rope_freqs.weight"]
        if "rope_factors_long.weight" in t:
            kind = "long" if n > original else "short"
            frequencies = frequencies / t[f"rope_factors_{kind}.weight"]
        if self.get("rope.scaling.type", "linear") == "yarn":
            # Peng et al., YaRN, section 3.2, with transformers' rounding.
            def place(rotations: float) -> float:
                return num * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

            low, high = place(32), place(1)
            if self.arch != "gpt-oss":
                low, high = math.floor(low), math.ceil(high)
            low, high = max(low, 0), min(high, num - 1)
            ramp = ((np.arange(num // 2) - low) / max(high - low, 0.001)).clip(0, 1)
            frequencies = frequencies / factor * ramp + frequencies * (1 - ramp)
            magnitude *= 0.1 * math.log(factor) + 1
        else:
            frequencies = frequencies / factor
        return np.outer(np.arange(n), frequencies), magnitude

    def _linear(self, x: Array, name: str) -> Array:
        product: Array = x @ self.tensors[f"{name}.weight"].T
        return product + self.tensors.get(f"{name}.bias", 0)

    def _norm(self, x: Array, gains: Array) -> Array:
        mean = (x**2).mean(axis=-1, keepdims=True)
        scaled: Array = x / np.sqrt(mean + self.get("attention.layer_norm_rms_epsilon"))
        return scaled * gains


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))
