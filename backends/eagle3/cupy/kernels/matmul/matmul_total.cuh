// An element's sum over all k; of SWIGLU it is the gate's, and `up` belongs to the up row.
#pragma once

struct Total {
    float value, up;
};
