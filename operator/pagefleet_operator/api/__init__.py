"""The LLMService resource: its types, rules and conditions, and what is generated from them. All of it is pure."""
