// The address of a function, or of a template's instance, under a name that Python finds.

#pragma once

#define EXPORT(NAME, ...) void* NAME = reinterpret_cast<void*>(&__VA_ARGS__);
