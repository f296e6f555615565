"""The state of a request when it enters the engine: before its first pass, or where an earlier run left off."""

from gesso.diffusion.canvas import Process
from gesso.diffusion.noise import NoiseSource
from gesso.engine.canvases import first_canvas
from gesso.engine.final_text import Decode, final_text
from gesso.engine.pieces import cut
from gesso.engine.request import Request, Score
from gesso.engine.running import Running
from gesso.engine.scheduler import Job
from gesso.engine.scoring import Scoring
from gesso.model.transformer import DiffusionGemma


def start(
    job_id: int, request: Request | Score, model: DiffusionGemma, source: NoiseSource, decode: Decode, piece: int
) -> Job:
    """Return the state of a request that has just been submitted. Its prompt is cut into pieces of `piece` tokens."""
    if isinstance(request, Score):
        return Scoring(job_id, request, cut(len(request.prompt), (), piece))
    cuts = cut(len(request.prompt), request.blocks, piece)
    process = Process(
        settings=request.diffusion,
        source=source,
        seed=request.seed,
        vocab_size=model.config.vocab_size,
        eos=request.eos,
        device=model.device,
    )
    length = request.canvas_length(model.config)
    if request.resume is None:
        return Running(job_id, request, cuts, process, first_canvas(request, process, model.config), length)
    draft = request.resume
    running = Running(job_id, request, cuts, process, draft.canvas, length, list(draft.before))
    running.shown = final_text(running.tokens, request, decode)
    if request.guide:
        running.state = request.guide.walk(running.state, running.tokens)
    return running
